//! How fast the control plane in memory is: single calls through a client, 100,000 objects, and their collection.
//!
//! `cargo bench --features sim --bench sim`

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use kube_custody::sim::Cluster;
use serde_json::json;

const CALLS: u32 = 20_000;
const OBJECTS: u32 = 100_000;

fn map(name: &str, owner: Option<&ConfigMap>) -> ConfigMap {
    let owners: Vec<_> = owner
        .map(|owner| {
            let (name, uid) = (&owner.metadata.name, &owner.metadata.uid);
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid})
        })
        .into_iter()
        .collect();
    let metadata = json!({"name": name, "labels": {"app": "bench"}, "ownerReferences": owners});
    serde_json::from_value(json!({"metadata": metadata, "data": {"key": "value"}})).expect("a ConfigMap")
}

fn api(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

fn report(what: &str, calls: u32, took: Duration) {
    println!("{what:32} {:>9.0} a second ({calls} in {took:.2?})", f64::from(calls) / took.as_secs_f64());
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::builder().keep_calls(false).build();
    let maps = api(cluster.client());
    let names: Vec<String> = (0..CALLS).map(|n| format!("map-{n:06}")).collect();

    let begin = Instant::now();
    for name in &names {
        maps.create(&PostParams::default(), &map(name, None)).await?;
    }
    report("create", CALLS, begin.elapsed());
    let begin = Instant::now();
    for name in &names {
        maps.get(name).await?;
    }
    report("get", CALLS, begin.elapsed());
    let patch = Patch::Merge(json!({"data": {"key": "other"}}));
    let begin = Instant::now();
    for name in &names {
        maps.patch(name, &PatchParams::default(), &patch).await?;
    }
    report("merge patch", CALLS, begin.elapsed());
    let begin = Instant::now();
    for name in &names {
        let applied =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"own": "1"}});
        maps.patch(name, &PatchParams::apply("bench"), &Patch::Apply(applied)).await?;
    }
    report("apply", CALLS, begin.elapsed());
    let begin = Instant::now();
    for name in &names {
        maps.delete(name, &DeleteParams::default()).await?;
    }
    report("delete", CALLS, begin.elapsed());

    let owner = maps.create(&PostParams::default(), &map("owner", None)).await?;
    let begin = Instant::now();
    for n in 0..OBJECTS {
        maps.create(&PostParams::default(), &map(&format!("child-{n:06}"), Some(&owner))).await?;
    }
    report("create, owned", OBJECTS, begin.elapsed());
    let begin = Instant::now();
    let steps = cluster.run_controllers().len();
    report("steps of the collector", u32::try_from(steps)?, begin.elapsed());
    let begin = Instant::now();
    let mut params = ListParams::default().limit(500);
    let mut listed = 0;
    loop {
        let page = maps.list(&params).await?;
        listed += u32::try_from(page.items.len())?;
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    report("listed, in pages of 500", listed, begin.elapsed());
    maps.delete("owner", &DeleteParams::default()).await?;
    let begin = Instant::now();
    let steps = cluster.run_controllers().len();
    report("steps to collect them", u32::try_from(steps)?, begin.elapsed());
    assert!(cluster.objects("configmaps").is_empty(), "all children are collected");
    Ok(())
}
