//! kube-runtime on the sim: watcher, reflector, finalizer, events, Controller.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::{
        Controller, WatchStreamExt,
        controller::Action,
        events::{EventType, Recorder, Reporter},
        finalizer, reflector, watcher,
    },
};
use kube_custody::sim::{Cluster, Fault, Trouble, Verb};
use serde_json::json;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": "x"}}})).unwrap()
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

/// What a watcher says, in short.
fn short<K: Resource>(event: &watcher::Event<K>) -> String {
    match event {
        watcher::Event::Apply(o) => format!("apply {}", o.meta().name.clone().unwrap()),
        watcher::Event::Delete(o) => format!("delete {}", o.meta().name.clone().unwrap()),
        watcher::Event::InitApply(o) => format!("init {}", o.meta().name.clone().unwrap()),
        watcher::Event::Init => "init".into(),
        watcher::Event::InitDone => "done".into(),
    }
}

async fn watches(config: watcher::Config) {
    let cluster = Cluster::new();
    let api = maps(cluster.client());
    for name in ["a", "b"] {
        api.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    let mut stream = pin!(watcher(api.clone(), config.page_size(1)));
    let mut next = async || short(&stream.next().await.unwrap().unwrap());
    for expected in ["init", "init a", "init b", "done"] {
        assert_eq!(next().await, expected);
    }
    api.create(&PostParams::default(), &map("c")).await.unwrap();
    assert_eq!(next().await, "apply c");
    // The server closes the watch: it is resumed without loss.
    cluster.close_watches();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(next().await, "delete a");
    // What was changed while nobody watched is gone from the history: everything is listed again.
    cluster.close_watches();
    api.delete("b", &DeleteParams::default()).await.unwrap();
    cluster.compact();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(matches!(&error, watcher::Error::WatchError(status) if status.code == 410), "{error}");
    let mut next = async || short(&stream.next().await.unwrap().unwrap());
    for expected in ["init", "init c", "done"] {
        assert_eq!(next().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn watcher_with_lists() {
    watches(watcher::Config::default()).await;
}

#[tokio::test(start_paused = true)]
async fn watcher_with_streaming_lists() {
    watches(watcher::Config::default().streaming_lists()).await;
}

#[tokio::test(start_paused = true)]
async fn selector_watch_deletes_what_loses_its_label() {
    let cluster = Cluster::new();
    let api = maps(cluster.client());
    api.create(&PostParams::default(), &map("a")).await.unwrap();
    let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(cluster.client(), "default");
    let mut stream = pin!(watcher(metadata, watcher::Config::default().labels("app=x")));
    for expected in ["init", "init a", "done"] {
        assert_eq!(short(&stream.next().await.unwrap().unwrap()), expected);
    }
    let strip = json!({"metadata": {"labels": {"app": null}}});
    let patched = api.patch("a", &PatchParams::default(), &Patch::Merge(&strip)).await.unwrap();
    let event = stream.next().await.unwrap().unwrap();
    assert_eq!(short(&event), "delete a");
    let watcher::Event::Delete(last) = event else { panic!() };
    assert_eq!(last.labels().get("app").map(String::as_str), Some("x"), "the last state that matched");
    assert_eq!(last.resource_version(), patched.resource_version());
}

#[tokio::test(start_paused = true)]
async fn reflector_follows() {
    let cluster = Cluster::new();
    let api = maps(cluster.client());
    let (reader, writer) = reflector::store();
    let stream = watcher(api.clone(), watcher::Config::default()).default_backoff().reflect(writer);
    tokio::spawn(stream.for_each(async |_| {}));
    reader.wait_until_ready().await.unwrap();
    assert!(reader.is_empty());
    for name in ["a", "b"] {
        api.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    api.delete("a", &DeleteParams::default()).await.unwrap();
    cluster.settle().await.unwrap();
    let names: Vec<_> = reader.state().iter().map(|map| map.name_any()).collect();
    assert_eq!(names, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn quiet_watches_get_bookmarks_and_end() {
    let cluster = Cluster::new();
    let api = maps(cluster.client());
    let params = kube::api::WatchParams::default().timeout(290);
    let mut stream = pin!(api.watch(&params, &cluster.version().to_string()).await.unwrap());
    Api::<k8s_openapi::api::core::v1::Node>::all(cluster.client())
        .create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap())
        .await
        .unwrap();
    let begin = tokio::time::Instant::now();
    let event = stream.next().await.unwrap().unwrap();
    let kube::api::WatchEvent::Bookmark(bookmark) = event else { panic!("{event:?}") };
    assert_eq!(bookmark.metadata.resource_version, cluster.version().to_string());
    assert_eq!(begin.elapsed().as_secs(), 60);
    assert!(stream.next().await.is_none());
    assert_eq!(begin.elapsed().as_secs(), 290);
}

#[tokio::test(start_paused = true)]
async fn finalizer_helper_adds_and_removes() {
    let cluster = Cluster::new();
    let api = maps(cluster.client());
    let run = async |cached: ConfigMap| {
        finalizer::finalizer(&api, "x.example.com/cleanup", Arc::new(cached), async |event| match event {
            finalizer::Event::Apply(_) => Ok::<_, std::io::Error>(Action::await_change()),
            finalizer::Event::Cleanup(_) => Ok(Action::requeue(Duration::from_secs(7))),
        })
        .await
        .unwrap()
    };
    let created = api.create(&PostParams::default(), &map("a")).await.unwrap();
    run(created).await;
    let held = api.get("a").await.unwrap();
    assert_eq!(held.finalizers(), ["x.example.com/cleanup"]);
    run(held).await;
    assert!(api.delete("a", &DeleteParams::default()).await.unwrap().is_left());
    run(api.get("a").await.unwrap()).await;
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn recorder_publishes() {
    let cluster = Cluster::new();
    let created = maps(cluster.client()).create(&PostParams::default(), &map("a")).await.unwrap();
    let recorder = Recorder::new(cluster.client(), Reporter { controller: "test".into(), instance: None });
    let event = kube::runtime::events::Event {
        type_: EventType::Normal,
        reason: "Tested".into(),
        note: Some("all is well".into()),
        action: "Testing".into(),
        secondary: None,
    };
    for _ in 0..2 {
        recorder.publish(&event, &created.object_ref(&())).await.unwrap();
    }
    let events = Api::<Event>::namespaced(cluster.client(), "default").list(&ListParams::default()).await.unwrap();
    let notes: Vec<_> = events.iter().map(|event| event.note.clone().unwrap()).collect();
    assert_eq!(notes, ["all is well"], "the second was merged into the first");
    assert_eq!(events.items[0].series.as_ref().map(|series| series.count), Some(2));
}

#[tokio::test(start_paused = true)]
async fn controller_reconciles_and_comes_again() {
    let cluster = Cluster::new();
    let client = cluster.client_as("operator");
    cluster.inject(Fault::new(Trouble::AnswerLost).user("operator").verb(Verb::Patch));
    let reconcile = async |map: Arc<ConfigMap>, client: Arc<Client>| {
        let done = json!({"data": {"done": "yes"}});
        maps((*client).clone()).patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(&done)).await?;
        Ok::<_, kube::Error>(Action::await_change())
    };
    let run = Controller::new(maps(client.clone()), watcher::Config::default()).run(
        reconcile,
        |_, _, _| Action::requeue(Duration::from_millis(500)),
        Arc::new(client),
    );
    tokio::spawn(run.for_each(async |_| {}));
    maps(cluster.client()).create(&PostParams::default(), &map("a")).await.unwrap();
    cluster.settle().await.unwrap();
    assert_eq!(cluster.object("configmaps", "default", "a").unwrap()["data"]["done"], "yes");
    let patches = cluster.audit().by("operator").only(|call| call.verb == Verb::Patch);
    assert_eq!(patches.effective().len(), 1, "{patches}");
    assert!(patches.len() > 1, "the lost answer was an error: {patches}");
}
