//! What the garbage collector does with unusual owner references, beyond the scenarios of [`upstream`](crate::upstream).
//!
//! On the sim each is played with twenty seeds, which differ in the order in which the controllers work.

use serde_json::json;

use crate::{
    both::{Stage, both, both_alone},
    objects::{BIGS, big, map, maps, owner, owners, release, state},
};

both! {
    async fn owner_held_by_another_finalizer_keeps_its_dependents_in_the_background(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &["x.io/hold"])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/parent"), "Background").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/child")).await, "there");
        stage.patch(&format!("{at}/parent"), release()).await;
        stage.until("the child follows", async || state(stage, format!("{at}/child")).await == "gone").await;
    }

    async fn wrong_coordinates_with_the_right_uid(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("good", &[owner(&parent, true)], &[])).await;
        stage.quiet().await;
        let mut wrong = owner(&parent, true);
        wrong["name"] = json!("misspelt");
        stage.create(&at, map("name", &[wrong.clone()], &[])).await;
        wrong["kind"] = json!("Secret");
        stage.create(&at, map("kind", &[wrong.clone()], &[])).await;
        // A kind that can't be resolved is retried for ever, and nothing happens.
        wrong["apiVersion"] = json!("no.such/v1");
        stage.create(&at, map("unknown", &[wrong], &[])).await;
        for name in ["name", "kind"] {
            stage.until("it is collected", async || state(stage, format!("{at}/{name}")).await == "gone").await;
        }
        stage.quiet().await;
        for name in ["parent", "good", "unknown"] {
            assert_eq!(state(stage, format!("{at}/{name}")).await, "there");
        }
    }

    async fn recreated_owner(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let old = stage.create(&at, map("parent", &[], &[])).await;
        stage.delete(&format!("{at}/parent"), "Background").await;
        stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&old, true)], &[])).await;
        stage.until("the reference is to another", async || state(stage, format!("{at}/child")).await == "gone").await;
        assert_eq!(state(stage, format!("{at}/parent")).await, "there");
    }
}

both_alone! {
    async fn references_into_another_namespace(stage: &Stage) {
        let (home, away) = (maps(&stage.namespace("gc").await), maps(&stage.namespace("gc").await));
        let parent = stage.create(&home, map("parent", &[], &[])).await;
        let other = stage.create(&away, map("other", &[], &[])).await;
        stage.create(&home, map("good", &[owner(&parent, true)], &[])).await;
        stage.quiet().await;
        stage.create(&away, map("bad", &[owner(&parent, true)], &[])).await;
        stage.create(&away, map("half", &[owner(&parent, true), owner(&other, false)], &[])).await;
        stage.until("bad is collected", async || state(stage, format!("{away}/bad")).await == "gone").await;
        stage.until("half loses it", async || owners(stage, format!("{away}/half")).await == ["other"]).await;
        stage.restart_collector().await;
        stage.quiet().await;
        for path in [format!("{home}/parent"), format!("{home}/good"), format!("{away}/half")] {
            assert_eq!(state(stage, path).await, "there");
        }
        let events = stage.get(&away.replace("configmaps", "events")).await.unwrap();
        let reasons: Vec<_> = events["items"].as_array().unwrap().iter().map(|event| event["reason"].clone()).collect();
        assert!(reasons.contains(&json!("OwnerRefInvalidNamespace")), "{reasons:?}");
    }

    async fn cluster_scoped_owners_and_dependents(stage: &Stage) {
        let namespaces = [stage.namespace("gc").await, stage.namespace("gc").await];
        let (parent, child) = (namespaces[0].clone(), namespaces[1].clone());
        let owning = stage.create(BIGS, big(&parent, &[])).await;
        for namespace in &namespaces {
            stage.create(&maps(namespace), map("child", &[owner(&owning, true)], &[])).await;
        }
        let inside = stage.create(&maps(&parent), map("inside", &[], &[])).await;
        stage.create(BIGS, big(&child, &[owner(&inside, false)])).await;
        stage.quiet().await;
        stage.delete(&format!("{BIGS}/{parent}"), "Background").await;
        for namespace in &namespaces {
            let path = format!("{}/child", maps(namespace));
            stage.until("both children go", async || state(stage, path.clone()).await == "gone").await;
        }
        // What is in cluster scope is never collected for an owner in a namespace.
        stage.delete(&format!("{}/inside", maps(&parent)), "Background").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{BIGS}/{child}")).await, "there");
        stage.restart_collector().await;
        stage.quiet().await;
        assert_eq!(owners(stage, format!("{BIGS}/{child}")).await, ["inside"]);
        stage.delete(&format!("{BIGS}/{child}"), "Background").await;
    }
}
