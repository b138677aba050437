//! test/integration/garbagecollector, on both stages.
//!
//! Where upstream uses ReplicationControllers and pods only for their ownership, these are ConfigMaps. Its two forms with
//! and without the watch cache are one here, as is its slow watch of PersistentVolumes: which kind the collector lists
//! first is left to chance, on the sim by seed. `TestCascadingDeleteOnCRDConversionFailure` is not here: the sim converts
//! nothing, and a real server takes minutes to give up on such lists.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    both::{JSON, Stage, both, both_alone},
    objects::{
        CRDS, core, define, definition, gone, items, known, map, maps, owner, owners, pod, pods, rc, rcs, release,
        state, thing, things,
    },
};

both! {
    async fn cascading_deletion(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let one = stage.create(&at, map("one", &[], &[])).await;
        let two = stage.create(&at, map("two", &[], &[])).await;
        stage.create(&at, map("ofone", &[owner(&one, false)], &[])).await;
        stage.create(&at, map("ofboth", &[owner(&one, false), owner(&two, false)], &[])).await;
        stage.create(&at, map("free", &[], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/one"), "Background").await;
        stage.until("ofone is gone", async || state(stage, format!("{at}/ofone")).await == "gone").await;
        stage.until("the reference is dropped", async || owners(stage, format!("{at}/ofboth")).await == ["two"]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/ofboth")).await, "there");
        assert_eq!(state(stage, format!("{at}/free")).await, "there");
    }

    async fn create_with_non_existent_owner(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let never = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "doesn't matter"});
        stage.create(&at, map("child", &[never], &[])).await;
        stage.until("it is collected", async || state(stage, format!("{at}/child")).await == "gone").await;
    }

    async fn stressing_cascading_deletion(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let (at, owning) = (pods(&namespace), rcs(&namespace));
        let plain = json!({});
        let (orphaning, deleting) = (json!({"orphanDependents": true}), json!({"orphanDependents": false}));
        // Finalizers, options, and whether the pods stay.
        let cases: [(&[&str], &Value, bool); 4] =
            [(&[], &plain, true), (&["orphan"], &plain, true), (&["orphan"], &deleting, false), (&[], &orphaning, true)];
        let collections = (0..3).flat_map(|round| cases.iter().enumerate().map(move |(case, rest)| (round, case, rest)));
        let made = join_all(collections.map(async |(round, case, (finalizers, options, stay))| {
            let name = format!("{round}-{case}");
            let owning = stage.create(&owning, rc(&format!("rc-{name}"), finalizers)).await;
            for pod_of in 0..3 {
                stage.create(&at, pod(&format!("pod-{name}-{pod_of}"), &[owner(&owning, false)], &[])).await;
            }
            (owning, name, options, stay)
        }))
        .await;
        stage.quiet().await;
        join_all(made.iter().map(async |(_, name, options, _)| {
            let answer = stage.send("DELETE", &format!("{owning}/rc-{name}"), JSON, Some(options)).await;
            assert!([200, 202].contains(&answer.code), "{answer:?}");
        }))
        .await;
        stage.until("the owners go", async || items(stage, &owning).await.is_empty()).await;
        let staying = made.iter().filter(|(.., stay)| **stay).count() * 3;
        stage.until("all others go", async || items(stage, &at).await.len() == staying).await;
        stage.quiet().await;
        for (owning, name, _, stay) in &made {
            assert!(!stage.knows(owning["metadata"]["uid"].as_str().unwrap()).await, "{name} is in the graph");
            for pod_of in 0..3 {
                let path = format!("{at}/pod-{name}-{pod_of}");
                assert_eq!(state(stage, path.clone()).await, if **stay { "there" } else { "gone" }, "{path}");
                if **stay {
                    assert_eq!(owners(stage, path).await, [""; 0]);
                }
            }
        }
    }

    async fn orphaning(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let (at, custom) = (maps(&namespace), things(&namespace));
        let parent = stage.create(&custom, thing("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &[])).await;
        stage.create(&custom, thing("child", &[owner(&parent, false)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{custom}/parent"), "Orphan").await;
        stage.until("the parent goes", async || state(stage, format!("{custom}/parent")).await == "gone").await;
        stage.quiet().await;
        for child in [format!("{at}/child"), format!("{custom}/child")] {
            assert_eq!(state(stage, child.clone()).await, "there");
            assert_eq!(owners(stage, child).await, [""; 0]);
        }
    }

    async fn solid_owner_does_not_block_waiting_owner(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let waiting = stage.create(&at, map("waiting", &[], &[])).await;
        let solid = stage.create(&at, map("solid", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&waiting, true), owner(&solid, false)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/waiting"), "Foreground").await;
        stage.until("it goes", async || state(stage, format!("{at}/waiting")).await == "gone").await;
        stage.quiet().await;
        assert_eq!(owners(stage, format!("{at}/child")).await, ["solid"]);
    }

    async fn non_blocking_owner_ref_does_not_block(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, false)], &["x.io/hold"])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        stage.until("the parent goes", async || state(stage, format!("{at}/parent")).await == "gone").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/child")).await, "terminating");
        stage.patch(&format!("{at}/child"), release()).await;
        assert_eq!(state(stage, format!("{at}/child")).await, "gone");
    }

    async fn double_deletion_with_finalizer(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        stage.create(&at, map("a", &[], &["x/y"])).await;
        for _ in 0..2 {
            stage.delete(&format!("{at}/a"), "Foreground").await;
            stage.until("only the other finalizer is left", async || {
                stage.get(&format!("{at}/a")).await.unwrap()["metadata"]["finalizers"] == json!(["x/y"])
            })
            .await;
        }
        stage.patch(&format!("{at}/a"), release()).await;
        assert_eq!(state(stage, format!("{at}/a")).await, "gone");
    }

    async fn custom_resource_cascading_deletion(stage: &Stage) {
        let at = things(&stage.namespace("gc").await);
        let parent = stage.create(&at, thing("parent", &[], &[])).await;
        let child = stage.create(&at, thing("child", &[owner(&parent, true)], &[])).await;
        known(stage, &[&parent, &child]).await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        gone(stage, &[format!("{at}/parent")]).await;
        assert_eq!(state(stage, format!("{at}/child")).await, "gone", "it goes before its owner");
    }

    async fn mixed_relationships(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let (at, custom) = (maps(&namespace), things(&namespace));
        let parent = stage.create(&custom, thing("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &[])).await;
        let other = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&custom, thing("child", &[owner(&other, true)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{custom}/parent"), "Foreground").await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        for path in [format!("{custom}/parent"), format!("{at}/child"), format!("{at}/parent"), format!("{custom}/child")] {
            stage.until("all go", async || state(stage, path.clone()).await == "gone").await;
        }
    }

    async fn crd_deletion_cascading(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let group = format!("{namespace}.example.com");
        let (at, custom) = (maps(&namespace), format!("/apis/{group}/v1/namespaces/{namespace}/parts"));
        // The second time the kind is another one with the same name.
        for _ in 0..2 {
            define(stage, definition(&group, "parts", "Part"), &custom).await;
            let part = json!({"apiVersion": format!("{group}/v1"), "kind": "Part", "metadata": {"name": "parent"}});
            let parent = stage.create(&custom, part).await;
            stage.create(&at, map("child", &[owner(&parent, false)], &[])).await;
            known(stage, &[&parent]).await;
            stage.delete(&format!("{CRDS}/parts.{group}"), "Background").await;
            gone(stage, &[format!("{CRDS}/parts.{group}"), format!("{at}/child")]).await;
        }
    }
}

both_alone! {
    async fn cross_namespace_references(stage: &Stage) {
        let (home, away) = (stage.namespace("gc").await, stage.namespace("gc").await);
        stage.stop_collector().await;
        let parent = stage.create(&maps(&home), map("parent", &[], &[])).await;
        for n in 0..10 {
            stage.create(&core(&home, "secrets"), secret(&format!("good-{n}"), &[owner(&parent, false)])).await;
        }
        let mut wrong = owner(&parent, false);
        wrong["kind"] = json!("Pod");
        let unknown = |n: usize| json!({"apiVersion": format!("u{n}/v1"), "kind": "U", "name": "u", "uid": format!("u{n}")});
        for n in 0..5 {
            let bad = [owner(&parent, false), wrong.clone()];
            stage.create(&core(&away, "secrets"), secret(&format!("bad-{n}"), &bad[n % 2..=n % 2])).await;
            // What can't be resolved is kept, and does not keep others waiting.
            let noise: Vec<_> = (0..25).map(unknown).chain([owner(&parent, false)]).collect();
            stage.create(&core(&away, "secrets"), secret(&format!("noise-{n}"), &noise)).await;
        }
        stage.restart_collector().await;
        let bad = |n| format!("{}/bad-{n}", core(&away, "secrets"));
        gone(stage, &(0..5).map(bad).collect::<Vec<_>>()).await;
        known(stage, &[&parent]).await;
        stage.create(&core(&away, "secrets"), secret("bad-5", &[owner(&parent, false)])).await;
        gone(stage, &[bad(5)]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{}/parent", maps(&home))).await, "there");
        assert_eq!(items(stage, &core(&home, "secrets")).await.len(), 10);
        assert_eq!(items(stage, &core(&away, "secrets")).await.len(), 5, "the noise");
        assert!(stage.knows(parent["metadata"]["uid"].as_str().unwrap()).await);
    }

    async fn blocking_owner_ref_does_block(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &["x.io/hold"])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        stage.until("the child is told", async || state(stage, format!("{at}/child")).await == "terminating").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/parent")).await, "terminating");
        stage.restart_collector().await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/parent")).await, "terminating");
        stage.patch(&format!("{at}/child"), release()).await;
        stage.until("the parent goes", async || state(stage, format!("{at}/parent")).await == "gone").await;
    }

    async fn cluster_scoped_owners(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let volumes = "/api/v1/persistentvolumes";
        let volume = |name: String| {
            let spec = json!({
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"},
            });
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
        };
        stage.stop_collector().await;
        let name = at.split('/').nth(4).unwrap();
        let existing = stage.create(volumes, volume(name.to_owned())).await;
        let missing = json!({"apiVersion": "v1", "kind": "PersistentVolume", "name": "missing", "uid": format!("{name}-1")});
        let unknown = json!({"apiVersion": "v1", "kind": "UnknownType", "name": "unknown", "uid": format!("{name}-2")});
        stage.create(&at, map("of-missing", &[missing], &[])).await;
        stage.create(&at, map("of-unknown", &[unknown], &[])).await;
        stage.create(&at, map("of-existing", &[owner(&existing, false)], &[])).await;
        stage.restart_collector().await;
        gone(stage, &[format!("{at}/of-missing")]).await;
        known(stage, &[&existing]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/of-unknown")).await, "there");
        assert_eq!(state(stage, format!("{at}/of-existing")).await, "there");
        // The server protects volumes by a finalizer.
        stage.patch(&format!("{volumes}/{name}"), release()).await;
        stage.delete(&format!("{volumes}/{name}"), "Background").await;
        gone(stage, &[format!("{volumes}/{name}"), format!("{at}/of-existing")]).await;
    }
}

fn secret(name: &str, owners: &[Value]) -> Value {
    let metadata = json!({"name": name, "ownerReferences": owners});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
}
