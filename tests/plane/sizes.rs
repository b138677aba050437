//! Parents with many children.

use std::collections::BTreeSet;

use control_plane::audit::{CallHead, Fault, Refusal, Verb};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt, api::DynamicObject, api::ListParams};
use kube_custody::custodian::{Phase, Watch};

use crate::world::*;

/// More than fit into one stored object.
const CHILDREN: u64 = 2700;
/// Letters of a child's name.
const LONG: usize = 240;
/// Half of what the API server takes for one object.
const HALF: usize = 512 << 10;

/// As long as a name may be, nearly, and hardly to be compressed.
fn long_name(n: u64) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
    let words = (1..=20_u64).map(|i| (n * 31 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ n);
    let letters = words.flat_map(|word| (0..LONG / 20).map(move |i| LETTERS[(word >> (5 * i) & 31) as usize] as char));
    letters.collect()
}

/// Which stored object of an inventory a call writes to.
fn record(head: &CallHead) -> Option<&str> {
    let name = head.name().filter(|name| name.starts_with("inventory-"))?;
    (head.target.plural == "configmaps" && head.verb.writes()).then_some(name)
}

fn is_root(name: &str) -> bool {
    name.ends_with("-a") || name.ends_with("-b")
}

/// The stored objects by name, with the size of each as the API server counts it.
async fn stored(scene: &Scene) -> Vec<(String, usize)> {
    let labelled = ListParams::default().labels(&format!("{MANAGER}/inventory"));
    let records = Api::<ConfigMap>::namespaced(scene.admin.clone(), &scene.ns).list(&labelled).await.unwrap();
    let size = |record: &ConfigMap| {
        let texts = record.data.iter().flatten().map(|(_, text)| text.len());
        texts.chain(record.binary_data.iter().flatten().map(|(_, bytes)| bytes.0.len())).sum()
    };
    records.iter().map(|record| (record.name_any(), size(record))).collect()
}

fn assert_headroom(records: &[(String, usize)]) {
    assert!(records.iter().all(|(_, size)| *size < HALF), "{records:?}");
}

#[tokio::test]
async fn c26_thousands_of_children_fit_into_the_record_or_none_is_created() {
    let scene = Scene::with("c26", |b| b.watch(Watch::Off)).await;
    let mut set: Vec<DynamicObject> = (0..CHILDREN).map(|n| scene.map(&long_name(n), &[])).collect();

    // The record cannot be had at all; then it can, but cannot be filled.
    for had in [false, true] {
        scene.log.on_call(move |head| match record(head) {
            Some(name) if !(had && head.verb == Verb::Create && is_root(name)) => {
                Fault::Fail(Refusal::status(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728"))
            }
            _ => Fault::Pass,
        });
        let outcome = scene.pass(&set).await;
        let error = outcome.error.as_ref().map(|e| format!("{e:?}")).unwrap_or_default();
        assert!(error.contains("too large"), "{outcome:#?}");
        assert_ne!(outcome.phase, Phase::Applied);
    }
    scene.log.heal();
    let children = |head: &CallHead| head.target.plural == "configmaps" && head.verb == Verb::Create;
    let early = scene.log.calls_where(|c| children(&c.head) && record(&c.head).is_none());
    assert!(early.is_empty(), "created before the record: {early:?}");

    scene.apply(&set).await;
    let records = stored(&scene).await;
    assert!(records.iter().filter(|(name, _)| !is_root(name)).count() > 1, "{records:?}");
    assert_headroom(&records);
    let inventory = scene.inventory().await;
    assert!(set.iter().all(|o| inventory.get(&scene.id(&o.name_any())).is_some_and(|e| e.uid.is_some())));

    // One more child is a matter of its own shard and of the one that counts what depends on the proxy.
    set.push(scene.map(&long_name(CHILDREN), &[]));
    scene.log.clear();
    scene.apply(&set).await;
    let writes = scene.log.calls_where(|c| record(&c.head).is_some());
    let touched: BTreeSet<_> = writes.iter().filter_map(|c| record(&c.head)).filter(|name| !is_root(name)).collect();
    assert!(touched.len() <= 2 && writes.len() <= 4, "{writes:#?}");
    assert_headroom(&stored(&scene).await);

    scene.log.clear();
    scene.delete().await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    let left = Api::<ConfigMap>::namespaced(scene.admin.clone(), &scene.ns).list(&ListParams::default()).await.unwrap();
    assert!(left.iter().all(|map| map.name_any() == "kube-root-ca.crt"), "{} are left", left.items.len());
    assert_eq!(scene.deleted().iter().filter(|name| name.len() == LONG).count(), set.len(), "each of them once");
}
