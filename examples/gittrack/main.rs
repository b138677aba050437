//! An operator that applies directories of YAML manifests from a local git checkout, as Faros did, with proxy owners.
//!
//! A `GitTrack` (namespaced) or `ClusterGitTrack` names a directory below the checkout; the objects in its `*.yaml` files
//! are created, kept up to date, pruned when they leave the directory, and torn down in order when the track is deleted.
//!
//! ```text
//! cargo run --example gittrack -- crds | kubectl apply -f -
//! kubectl apply -f examples/gittrack/deploy/rbac.yaml
//! cargo run --example gittrack -- run --repo DIRECTORY [--mode cluster-wide|namespaced] [--interval SECONDS]
//! ```
//!
//! In mode `namespaced` a GitTrack manages its own namespace only, and its status lists what it ignores and why: for
//! clusters whose tenants may write GitTracks. ClusterGitTracks are then the administrator's.

#![allow(unreachable_pub, missing_docs, reason = "an application, not a library")]

mod api;
mod manifests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use api::{ClusterGitTrack, GitTrack, Track};
use futures::StreamExt;
use kube::{
    Api, Client, CustomResourceExt,
    api::{Patch, PatchParams},
    runtime::{Controller, controller::Action, watcher},
};
use kube_custody::{
    custodian::{Custodian, Outcome},
    inventory::ConfigMapStore,
    manager::Manager,
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
    },
    status,
};

const MANAGER: &str = "gittrack.example.com";

/// What every reconcile of one kind shares.
struct Context<K> {
    client: Client,
    custodian: Custodian<K>,
    repo: PathBuf,
    interval: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Options::parse(std::env::args().skip(1))? {
        Options::Crds => {
            let definitions = [GitTrack::crd(), ClusterGitTrack::crd()];
            for crd in definitions.into_iter().chain(<(GitTrackOwner, ClusterGitTrackOwner)>::crds()) {
                println!("---\n{}", serde_json::to_string_pretty(&crd)?);
            }
        }
        Options::Run { repo, policy, interval, namespace } => {
            let client = Client::try_default().await?;
            let store = ConfigMapStore::new(client.clone(), Manager::new(MANAGER)?).namespace(namespace)?;
            let tracks = Custodian::<GitTrack>::builder(client.clone(), MANAGER)
                .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
                .ownership(policy)
                .build()?;
            let cluster_tracks = Custodian::<ClusterGitTrack>::builder(client.clone(), MANAGER)
                .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
                .ownership(OwnershipPolicy::ClusterWide)
                .store(Arc::new(store))
                .build()?;
            tokio::join!(
                operate(Context { client: client.clone(), custodian: tracks, repo: repo.clone(), interval }),
                operate(Context { client, custodian: cluster_tracks, repo, interval }),
            );
        }
    }
    Ok(())
}

/// Runs the controller of one kind until the process is told to stop.
async fn operate<K: Track>(context: Context<K>) {
    let wakeups =
        context.custodian.wakeups().filter_map(|w| async move { w.is_for::<K>().then(|| w.object_ref::<K>()) });
    Controller::new(Api::<K>::all(context.client.clone()), watcher::Config::default())
        .reconcile_on(wakeups)
        .shutdown_on_signal()
        .run(reconcile, |_, error, _| on_error(error), Arc::new(context))
        .for_each(|result| async move {
            if let Err(error) = result {
                eprintln!("{error}");
            }
        })
        .await;
}

async fn reconcile<K: Track>(track: Arc<K>, context: Arc<Context<K>>) -> Result<Action, Error> {
    let repo = context.repo.clone();
    let outcome =
        context.custodian.reconcile(&*track, async move |track: Arc<K>| manifests::read(&repo, track.path())).await;
    publish(&context.client, &*track, &outcome).await?;
    // The directory has no watch: look at it now and then.
    let again = outcome.requeue.map(|after| after.min(context.interval));
    outcome.into_action().map_err(Error::Custodian)?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

fn on_error(_error: &Error) -> Action {
    Action::requeue(Duration::from_secs(5))
}

/// Writes conditions and the list of ignored objects, if they say something new.
async fn publish<K: Track>(client: &Client, track: &K, outcome: &Outcome) -> Result<(), Error> {
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::now());
    let before = track.status().cloned().unwrap_or_default();
    let conditions = status::conditions(outcome, &before.conditions, track.meta().generation, &now);
    let ignored: Vec<_> = outcome.ignored.iter().map(ToString::to_string).collect();
    if conditions.is_none() && ignored == before.ignored {
        return Ok(());
    }
    let patch = serde_json::json!({
        "metadata": {"uid": track.meta().uid},
        "status": {"conditions": conditions.unwrap_or(before.conditions), "ignored": ignored},
    });
    let patched =
        track.api(client).patch_status(&track.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
    match patched {
        // Let go in this very pass, or replaced: there is nothing to write to any more.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        other => other.map(|_| ()).map_err(Error::Status),
    }
}

#[derive(Debug)]
enum Error {
    Custodian(kube_custody::custodian::Error),
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
    Run { repo: PathBuf, policy: OwnershipPolicy, interval: Duration, namespace: String },
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        const USAGE: &str = "usage: gittrack crds | gittrack run --repo DIRECTORY [--mode cluster-wide|namespaced] \
                             [--interval SECONDS] [--namespace NAMESPACE]";
        match args.next().as_deref() {
            Some("crds") => return Ok(Self::Crds),
            Some("run") => {}
            _ => return Err(USAGE.into()),
        }
        let (mut repo, mut policy) = (None, OwnershipPolicy::ClusterWide);
        let (mut interval, mut namespace) = (Duration::from_secs(30), "gittrack-system".to_owned());
        while let Some(flag) = args.next() {
            let value = args.next().ok_or(USAGE)?;
            match flag.as_str() {
                "--repo" => repo = Some(PathBuf::from(value)),
                "--mode" if value == "cluster-wide" => policy = OwnershipPolicy::ClusterWide,
                "--mode" if value == "namespaced" => policy = OwnershipPolicy::SameNamespace,
                "--interval" => interval = Duration::from_secs(value.parse().map_err(|_| USAGE)?),
                "--namespace" => namespace = value,
                _ => return Err(USAGE.into()),
            }
        }
        let repo = repo.ok_or(USAGE)?;
        let repo = repo.canonicalize().map_err(|e| format!("--repo {}: {e}", repo.display()))?;
        Ok(Self::Run { repo, policy, interval, namespace })
    }
}

use kube::ResourceExt;
