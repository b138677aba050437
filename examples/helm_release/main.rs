//! An operator that renders chart-like folders into a namespace and into cluster scope, and survives the deletion of that
//! namespace: the case of operator-framework/helm-operator-plugins#137, where the record of a release went with its
//! namespace, and what the release had in cluster scope stayed for good.
//!
//! ```text
//! cargo run --example helm_release -- crds | kubectl apply -f -
//! kubectl apply -f examples/helm_release/deploy/rbac.yaml   # what `cargo run --example helm_release -- rbac` prints
//! cargo run --example helm_release -- run [--charts DIRECTORY]
//! ```
//!
//! A `HelmRelease` and its inventory are in one namespace. Both carry finalizers, so `kubectl delete namespace` waits until
//! the cluster-scoped children are proven gone; an operator that is down at that moment finishes when it starts.
//!
//! Run the operator in a namespace of its own, never in one with releases: a namespace that is deleted takes its pods
//! first, the operator among them, and its releases would wait for ever.

#![allow(unreachable_pub, missing_docs, reason = "an application, not a library")]

mod api;
mod chart;

use std::{path::PathBuf, sync::Arc, time::Duration};

use api::{ClusterHelmReleaseOwner, HelmRelease, HelmReleaseOwner};
use futures::StreamExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{Controller, controller::Action, watcher},
};
use kube_custody::{
    custodian::{Custodian, Error, Outcome},
    object::{ResourceKind, Scope},
    ownership::{OwnershipPolicy, proxy::ProxyOwners},
    rbac::{Account, Setup},
    status,
};

const MANAGER: &str = "helm.example.com";

struct Context {
    client: Client,
    custodian: Custodian<HelmRelease>,
    charts: PathBuf,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["crds"] => {
            for crd in [HelmRelease::crd()].into_iter().chain(<(HelmReleaseOwner, ClusterHelmReleaseOwner)>::crds()) {
                println!("---\n{}", serde_json::to_string_pretty(&crd)?);
            }
        }
        ["rbac"] => print!("{}", setup()?.rights().yaml(&Account::new("helm-release-system", "helm-release"))),
        ["run"] => run("examples/helm_release/charts").await?,
        ["run", "--charts", charts] => run(charts).await?,
        _ => return Err("usage: helm_release crds | helm_release rbac | helm_release run [--charts DIRECTORY]".into()),
    }
    Ok(())
}

/// What the charts hold; another chart may need more.
fn setup() -> Result<Setup, kube_custody::ownership::Error> {
    let group = "rbac.authorization.k8s.io";
    Setup::new(ResourceKind::of::<HelmRelease>(Scope::Namespaced))
        .children([
            ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced),
            ResourceKind::new(group, "v1", "ClusterRole", "clusterroles", Scope::Cluster),
            ResourceKind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", Scope::Cluster),
        ])
        .proxies::<HelmReleaseOwner, ClusterHelmReleaseOwner>()
}

async fn run(charts: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::try_default().await?;
    let custodian = Custodian::<HelmRelease>::builder(client.clone(), MANAGER)
        .proxies::<HelmReleaseOwner, ClusterHelmReleaseOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
        .build()?;
    let wakeups = custodian.wakeups().map(|wakeup| wakeup.object_ref::<HelmRelease>());
    Controller::new(Api::<HelmRelease>::all(client.clone()), watcher::Config::default())
        .reconcile_on(wakeups)
        .shutdown_on_signal()
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_secs(5)),
            Arc::new(Context { client, custodian, charts: charts.into() }),
        )
        .for_each(|result| async move {
            if let Err(error) = result {
                eprintln!("{error}");
            }
        })
        .await;
    Ok(())
}

async fn reconcile(release: Arc<HelmRelease>, context: Arc<Context>) -> Result<Action, Error> {
    let charts = context.charts.clone();
    let render = async move |release: Arc<HelmRelease>| {
        let namespace = release.namespace().unwrap_or_default();
        let facts = chart::facts(&release.name_any(), &namespace, &release.spec.values);
        chart::render(&charts, &release.spec.chart, &facts)
    };
    let outcome = context.custodian.reconcile(&*release, render).await;
    if let Err(error) = publish(&context.client, &release, &outcome).await {
        eprintln!("{}: the status could not be written: {error}", release.name_any());
    }
    outcome.into_action()
}

/// Writes conditions, if they say something new.
async fn publish(client: &Client, release: &HelmRelease, outcome: &Outcome) -> Result<(), kube::Error> {
    let before = release.status.clone().unwrap_or_default().conditions;
    let now = Time(Timestamp::now());
    let Some(conditions) = status::conditions(outcome, &before, release.metadata.generation, &now) else {
        return Ok(());
    };
    let patch = serde_json::json!({"metadata": {"uid": release.uid()}, "status": {"conditions": conditions}});
    let api = Api::<HelmRelease>::namespaced(client.clone(), &release.namespace().unwrap_or_default());
    match api.patch_status(&release.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        // Let go in this very pass, or replaced: there is nothing to write to any more.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        other => other.map(drop),
    }
}
