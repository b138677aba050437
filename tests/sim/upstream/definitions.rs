//! apiextensions-apiserver/test/integration/finalization_test.go, on both stages.

use std::pin::pin;

use futures::StreamExt;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

use crate::{
    both::{JSON, Stage, both},
    objects::{CRDS, define, definition, gone, release, state},
};

/// A kind of its own: the path of its definition, and of its objects.
async fn kind(stage: &Stage) -> (String, String, String) {
    let namespace = stage.namespace("crd").await;
    let group = format!("{namespace}.example.com");
    let base = format!("/apis/{group}/v1/namespaces/{namespace}/noxus");
    define(stage, definition(&group, "noxus", "Noxu"), &base).await;
    (format!("{CRDS}/noxus.{group}"), base, group)
}

fn noxu(group: &str, name: &str) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Noxu", "metadata": {"name": name, "finalizers": ["noxu.io/hold"]}})
}

both! {
    async fn finalization(stage: &Stage) {
        let (definition, base, group) = kind(stage).await;
        let path = format!("{base}/foo");
        let made = stage.create(&base, noxu(&group, "foo")).await;
        let uid = &made["metadata"]["uid"];
        let delete = json!({"preconditions": {"uid": uid}});
        // Each time it is found, marked, and kept.
        for _ in 0..2 {
            assert_eq!(stage.send("DELETE", &path, JSON, Some(&delete)).await.code, 200);
            let held = stage.get(&path).await.unwrap();
            assert!(held["metadata"]["deletionTimestamp"].is_string());
            assert_eq!((&held["metadata"]["uid"], &held["metadata"]["finalizers"]), (uid, &json!(["noxu.io/hold"])));
        }
        assert_eq!(stage.patch(&path, release()).await.code, 200);
        assert_eq!(state(stage, path.clone()).await, "gone");
        assert_eq!(stage.send("DELETE", &path, JSON, Some(&delete)).await.code, 404);
        stage.delete(&definition, "Background").await;
        gone(stage, &[definition]).await;
    }

    async fn finalization_and_deletion(stage: &Stage) {
        let (definition, base, group) = kind(stage).await;
        let path = format!("{base}/foo");
        stage.create(&base, noxu(&group, "foo")).await;
        stage.delete(&path, "Background").await;
        stage.delete(&definition, "Background").await;
        // What is held can be read and changed until the end.
        assert_eq!(state(stage, path.clone()).await, "terminating");
        let labelled = stage.patch(&path, json!({"metadata": {"labels": {"still": "here"}}})).await;
        assert_eq!((labelled.code, &labelled.body["metadata"]["labels"]["still"]), (200, &json!("here")));
        stage.quiet().await;
        assert_eq!(state(stage, definition.clone()).await, "terminating");
        assert_eq!(stage.patch(&path, release()).await.code, 200);
        gone(stage, &[definition]).await;
        stage.until("it is not served", async || stage.send("GET", &path, JSON, None).await.code == 404).await;
    }

    /// Beyond upstream: a watch tells of the objects that go with their definition.
    async fn watch_of_what_goes_with_its_definition(stage: &Stage) {
        let (definition, base, group) = kind(stage).await;
        let mut object = noxu(&group, "foo");
        object["metadata"]["finalizers"].take();
        let made = stage.create(&base, object).await;
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(&group, "v1", "Noxu"), "noxus");
        let api = Api::<DynamicObject>::all_with(stage.client(), &kind);
        let from = made["metadata"]["resourceVersion"].as_str().unwrap();
        let mut events = pin!(api.watch(&WatchParams::default(), from).await.unwrap());
        stage.delete(&definition, "Background").await;
        gone(stage, &[definition]).await;
        match events.next().await {
            Some(Ok(WatchEvent::Deleted(object))) => assert_eq!(object.metadata.name.as_deref(), Some("foo")),
            other => panic!("{other:?}"),
        }
    }

    async fn apply_cr_during_crd_finalization(stage: &Stage) {
        let (definition, base, group) = kind(stage).await;
        stage.create(&base, noxu(&group, "held")).await;
        stage.delete(&definition, "Background").await;
        let apply = async || {
            let path = format!("{base}/new?fieldManager=applier&dryRun=All");
            stage.send("PATCH", &path, "application/apply-patch+yaml", Some(&noxu(&group, "new"))).await
        };
        // The server may take a moment to notice; until then it would be created.
        let mut answer = apply().await;
        stage
            .until("it is refused", async || {
                answer = apply().await;
                answer.code == 403
            })
            .await;
        assert_eq!(answer.body["reason"], "Forbidden");
        assert_eq!(
            answer.body["message"],
            format!("noxus.{group} \"new\" is forbidden: create not allowed while custom resource definition is terminating")
        );
        stage.patch(&format!("{base}/held"), release()).await;
        gone(stage, &[definition]).await;
    }
}
