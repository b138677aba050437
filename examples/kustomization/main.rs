//! An operator whose parents depend on each other: directories of manifests with `dependsOn`.
//!
//! A `Kustomization` is applied once everything that it depends on is ready, and torn down before it: Kustomizations
//! that are deleted all at once go in reverse order, each after everything that needs it is gone, pods included. What
//! is waited for is in the status.
//!
//! ```text
//! cargo run --example kustomization -- crds | kubectl apply -f -
//! kubectl apply -f examples/kustomization/deploy/rbac.yaml
//! cargo run --example kustomization -- run --repo examples/kustomization/sample
//! kubectl apply -f examples/kustomization/sample/kustomizations.yaml
//! kubectl delete kustomizations --all
//! ```
//!
//! With `--cross-namespace` Kustomizations may depend on those of other namespaces, and so hold up their deletion: for
//! clusters in which all of them are the administrator's. With `--allow-force` a Kustomization can be told not to wait
//! for dependents that it names:
//!
//! ```text
//! kubectl annotate kustomization crds 'kustomization.example.com/force={"uid": "<UID of crds>", "reason": "...",
//!   "dependents": [{"object": "Kustomization.kustomization.example.com default/operator", "uid": "<its UID>"}]}'
//! ```

#![allow(unreachable_pub, missing_docs, reason = "an application, not a library")]

mod api;
#[path = "../gittrack/manifests.rs"]
mod manifests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use api::Kustomization;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{Controller, controller::Action, watcher},
};
use kube_custody::{
    custodian::{self, Custodian, Outcome, Target, TargetKey, Unavailable},
    force::Allowed,
    gate::{BlockPolicy, Gate, ParentKind},
    object::{GroupKind, ObjectId},
    ownership::OwnershipPolicy,
    status,
};

const MANAGER: &str = "kustomization.example.com";

/// What every reconcile shares.
struct Context {
    client: Client,
    custodian: Custodian<Kustomization>,
    repo: PathBuf,
    interval: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Options::parse(std::env::args().skip(1))? {
        Options::Crds => println!("---\n{}", serde_json::to_string_pretty(&Kustomization::crd())?),
        Options::Run { repo, interval, policy, allowed } => {
            let client = Client::try_default().await?;
            let gate = Gate::builder(client.clone(), MANAGER)
                .kind(ParentKind::new(api::dependencies))
                .may_block(policy)
                .force(allowed)
                .until_ready(true)
                .build()?;
            let home = client.clone();
            let custodian = Custodian::<Kustomization>::builder(client.clone(), MANAGER)
                .ownership(OwnershipPolicy::ClusterWide)
                .gate(gate)
                .target(move |parent| target(home.clone(), parent))
                .build()?;
            operate(Context { client, custodian, repo, interval }).await;
        }
    }
    Ok(())
}

/// Where the children of a Kustomization live. The Secret is held until they are gone.
async fn target(home: Client, parent: Arc<Kustomization>) -> Result<Target, Unavailable> {
    let Some(kube_config) = &parent.spec.kube_config else { return Ok(Target::home()) };
    let (name, namespace) = (&kube_config.secret_ref.name, parent.namespace().unwrap_or_default());
    let id = ObjectId::new("", "Secret", Some(&namespace), name).map_err(|e| Unavailable::new(e.to_string()))?;
    let secret = Api::<Secret>::namespaced(home, &namespace).get(name).await;
    let secret = secret.map_err(|e| Unavailable::reading(&id, &e))?;
    let text = secret.data.as_ref().and_then(|data| data.get("value"));
    let text = text.ok_or_else(|| Unavailable::new(format!("{id} has no key \"value\"")))?;
    let config = custodian::kubeconfig(&text.0).await?;
    let client = Client::try_from(config).map_err(|_| Unavailable::new(format!("{id} makes no client")))?;
    Ok(Target::remote(TargetKey::of_secret(&secret), client).hold(id))
}

/// Runs the controller until the process is told to stop.
async fn operate(context: Context) {
    // One that waits for another is woken when that one is ready, or gone.
    let wakeups = context.custodian.wakeups().map(|wakeup| wakeup.object_ref::<Kustomization>());
    Controller::new(Api::<Kustomization>::all(context.client.clone()), watcher::Config::default())
        .reconcile_on(wakeups)
        .shutdown_on_signal()
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(5)), Arc::new(context))
        .for_each(|result| async move {
            if let Err(error) = result {
                eprintln!("{error}");
            }
        })
        .await;
}

async fn reconcile(parent: Arc<Kustomization>, context: Arc<Context>) -> Result<Action, Error> {
    let repo = context.repo.clone();
    let read = async move |parent: Arc<Kustomization>| manifests::read(&repo, &parent.spec.path);
    let outcome = context.custodian.reconcile(&*parent, read).await;
    publish(&context.client, &parent, &outcome).await?;
    // The directory has no watch: look at it now and then.
    let again = outcome.requeue.map(|after| after.min(context.interval));
    outcome.into_action().map_err(Error::Custodian)?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// Writes conditions, if they say something new.
async fn publish(client: &Client, parent: &Kustomization, outcome: &Outcome) -> Result<(), Error> {
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::now());
    let before = parent.status.clone().unwrap_or_default().conditions;
    let Some(conditions) = status::conditions(outcome, &before, parent.metadata.generation, &now) else {
        return Ok(());
    };
    let patch = serde_json::json!({"metadata": {"uid": parent.uid()}, "status": {"conditions": conditions}});
    let api = Api::<Kustomization>::namespaced(client.clone(), &parent.namespace().unwrap_or_default());
    match api.patch_status(&parent.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        // Let go in this very pass, or replaced: there is nothing to write to any more.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        other => other.map(|_| ()).map_err(Error::Status),
    }
}

#[derive(Debug)]
enum Error {
    Custodian(custodian::Error),
    Status(kube::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Custodian(error) => error.fmt(f),
            Self::Status(error) => write!(f, "the status could not be written: {error}"),
        }
    }
}

impl std::error::Error for Error {}

enum Options {
    Crds,
    Run { repo: PathBuf, interval: Duration, policy: BlockPolicy, allowed: Allowed },
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        const USAGE: &str = "usage: kustomization crds | kustomization run --repo DIRECTORY [--interval SECONDS] \
                             [--cross-namespace] [--allow-force]";
        match args.next().as_deref() {
            Some("crds") => return Ok(Self::Crds),
            Some("run") => {}
            _ => return Err(USAGE.into()),
        }
        let (mut repo, mut interval) = (None, Duration::from_secs(30));
        let (mut policy, mut allowed) = (BlockPolicy::same_namespace(), Allowed::nothing());
        while let Some(flag) = args.next() {
            match flag.as_str() {
                "--repo" => repo = args.next().map(PathBuf::from),
                "--interval" => {
                    let seconds = args.next().and_then(|value| value.parse().ok()).ok_or(USAGE)?;
                    interval = Duration::from_secs(seconds);
                }
                "--cross-namespace" => policy = BlockPolicy::anyone(),
                "--allow-force" => allowed = allowed.dependents(GroupKind::of::<Kustomization>()),
                _ => return Err(USAGE.into()),
            }
        }
        let repo = repo.ok_or(USAGE)?;
        let repo = repo.canonicalize().map_err(|e| format!("--repo {}: {e}", repo.display()))?;
        Ok(Self::Run { repo, interval, policy, allowed })
    }
}
