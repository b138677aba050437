//! The whole life of one parent with children in three scopes, told as a story.
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! Uses the cluster of `KUBECONFIG` if that is set, and else starts a control plane of its own (Go is needed to build it, once,
//! which takes some minutes). What it creates, it removes.

use std::{io::Write, sync::Arc, time::Duration};

use control_plane::{Plane, fixtures};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, CustomResource, CustomResourceExt,
    api::{DeleteParams, PostParams},
};
use kube_custody::{
    custodian::{Custodian, Desired, DesiredError, Outcome, Phase},
    graph::DependencyGraph,
    inventory::Loaded,
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "faros.pusher.com", version = "v1alpha1", kind = "GitTrack", namespaced)]
struct GitTrackSpec {
    path: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let (client, plane) = connect().await?;
    say("Installing the kinds: GitTrack, GitTrackOwner and ClusterGitTrackOwner.");
    fixtures::apply_crd(&client, &GitTrack::crd()).await;
    for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
        fixtures::apply_crd(&client, &crd).await;
    }
    let home = fixtures::namespace(&client, "quickstart").await;
    let result = story(&client, plane.as_ref(), &home).await;
    Api::<Namespace>::all(client).delete(&home, &DeleteParams::default()).await?;
    if let Some(plane) = plane {
        plane.shutdown().await?;
    }
    result
}

async fn connect() -> Result<(Client, Option<Plane>)> {
    if std::env::var_os("KUBECONFIG").is_some() {
        say("Using the cluster of KUBECONFIG.");
        return Ok((Client::try_default().await?, None));
    }
    say("KUBECONFIG is not set: starting a control plane (API server, garbage collector, namespace controller).");
    let plane = Plane::builder().start().await?;
    Ok((plane.client(), Some(plane)))
}

async fn story(client: &Client, plane: Option<&Plane>, home: &str) -> Result<()> {
    // One call makes a custodian; one call in the reconciler does the rest.
    let custodian = Custodian::<GitTrack>::builder(client.clone(), "gittrack.example.com")
        .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
        .build()?;
    let tracks = Api::<GitTrack>::namespaced(client.clone(), home);
    let track = GitTrack::new("track", GitTrackSpec { path: "/".into() });
    tracks.create(&PostParams::default(), &track).await?;
    say(&format!("Created GitTrack {home}/track. Its children are to live in two namespaces and in cluster scope."));

    let outcome = until(&custodian, &tracks, home, |o| o.phase == Phase::Applied).await?;
    println!("   applied:");
    for child in &outcome.applied {
        println!("     {}", child.id);
    }

    say("The record of it is in the cluster, edges included. The order of deletion, should it come to that:");
    let parent = tracks.get("track").await?;
    let Loaded::Found(snapshot) = custodian.inventory(&parent).await? else {
        return Err("the inventory is not there".into());
    };
    let graph = DependencyGraph::of_inventory(&snapshot.inventory);
    for line in graph.tree().to_string().lines() {
        println!("     {line}");
    }

    if let Some(plane) = plane {
        say("Restarting the garbage collector with an empty graph, which once cost Faros every object it managed.");
        plane.restart_garbage_collector().await?;
        plane.gc_quiet().await?;
        let outcome = until(&custodian, &tracks, home, |o| o.phase == Phase::Applied).await?;
        println!("   {} of {} objects are where they were", outcome.applied.len(), snapshot.inventory.len());
    }

    say("Deleting the GitTrack. Dependents go first; each is proven gone before what it needs is touched.");
    tracks.delete("track", &DeleteParams::default()).await?;
    let total = snapshot.inventory.len();
    until(&custodian, &tracks, home, |outcome| {
        let left = outcome.removal.blockers.len() + outcome.removal.waiting.len();
        bar(total.saturating_sub(left), total);
        outcome.phase == Phase::Released
    })
    .await?;
    println!();
    match tracks.get_opt("track").await? {
        None => say("Everything is gone: children, proxy owners, inventory, and the GitTrack itself."),
        Some(left) => return Err(format!("the GitTrack is still there: {:?}", left.metadata).into()),
    }
    Ok(())
}

/// What a reconciler would do, again and again.
async fn until(
    custodian: &Custodian<GitTrack>,
    tracks: &Api<GitTrack>,
    home: &str,
    mut done: impl FnMut(&Outcome) -> bool,
) -> Result<Outcome> {
    loop {
        let track = tracks.get("track").await?;
        let outcome = custodian.reconcile(&track, async |track: Arc<GitTrack>| desired(home, &track)).await;
        if done(&outcome) {
            return Ok(outcome);
        }
        for blocker in &outcome.removal.blockers {
            print!("\r   {blocker}\n");
        }
        if let Some(error) = outcome.error {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What the track asks for. A real operator reads it from somewhere: see the example `gittrack`.
fn desired(home: &str, track: &GitTrack) -> Result<Desired, DesiredError> {
    let other = format!("{home}-apps");
    let path = &track.spec.path;
    let mut desired = Desired::new();
    for value in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": home}, "data": {"path": path}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app", "namespace": other, "annotations": {
            "config.kubernetes.io/depends-on": format!("/namespaces/{home}/ConfigMap/settings")}}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": other, "annotations": {
            "config.kubernetes.io/depends-on": format!("/namespaces/{other}/ConfigMap/app")}}, "rules": []}),
    ] {
        desired.push_dynamic(
            serde_json::from_value(value).map_err(|source| DesiredError::Serialise { kind: "child".into(), source })?,
        );
    }
    Ok(desired)
}

fn say(text: &str) {
    println!("\n-- {text}");
}

fn bar(done: usize, total: usize) {
    const WIDTH: usize = 40;
    let filled = WIDTH * done / total.max(1);
    print!("\r   [{}{}] {done}/{total}", "#".repeat(filled), ".".repeat(WIDTH - filled));
    let _ = std::io::stdout().flush();
}
