//! The record of calls and the faults.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use control_plane::{
    Plane,
    audit::{AuditLog, CutMode, Fault, Gate, Outcome, Refusal, Verb},
    fixtures,
};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams},
};
use serde_json::json;

/// A recorded client of the administrator for the ConfigMaps of a new namespace, and one that is
/// not recorded.
async fn set_up(prefix: &str) -> (Api<ConfigMap>, AuditLog, Api<ConfigMap>) {
    let plane = Plane::shared().await;
    let other = plane.client();
    let namespace = fixtures::namespace(&other, prefix).await;
    let (client, log) = plane.audited("admin");
    (Api::namespaced(client, &namespace), log, Api::namespaced(other, &namespace))
}

async fn create(api: &Api<ConfigMap>, name: &str) -> Result<ConfigMap, kube::Error> {
    let namespace = api.namespace().unwrap();
    api.create(&PostParams::default(), &fixtures::config_map(namespace, name)).await
}

async fn names(api: &Api<ConfigMap>) -> Vec<String> {
    api.list(&ListParams::default()).await.unwrap().items.iter().map(|object| object.name_any()).collect()
}

/// An error of the connection, not an answer of the server.
fn is_cut(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(e) if e.to_string().contains("cut by the test"))
}

#[tokio::test]
async fn records_every_call() {
    let (maps, log, _) = set_up("record").await;
    let namespace = maps.namespace().unwrap().to_owned();
    let created = create(&maps, "a").await.unwrap();
    let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "b"}});
    maps.patch("a", &PatchParams::apply("me"), &Patch::Apply(&patch)).await.unwrap_err(); // conflict
    maps.patch("a", &PatchParams::default(), &Patch::Merge(&json!({"data": {}}))).await.unwrap();
    let condition = Preconditions { uid: created.uid(), resource_version: None };
    let mut delete = DeleteParams::background().preconditions(condition);
    delete.dry_run = true;
    maps.delete("a", &delete).await.unwrap();
    delete.dry_run = false;
    maps.delete("a", &delete).await.unwrap();
    maps.get("a").await.unwrap_err();
    maps.list(&ListParams::default()).await.unwrap();

    let calls = log.calls();
    let lines: Vec<String> = calls.iter().map(ToString::to_string).collect();
    let place = format!("configmaps {namespace}");
    assert_eq!(
        lines,
        [
            format!("#1 create {place}/a -> 201"),
            format!("#2 patch {place}/a (apply) -> 409 Conflict"),
            format!("#3 patch {place}/a -> 200"),
            format!("#4 delete {place}/a (dry run) -> 200"),
            format!("#5 delete {place}/a -> 200"),
            format!("#6 get {place}/a -> 404 NotFound"),
            format!("#7 list {place}/* -> 200"),
        ]
    );
    let effective: Vec<_> = calls.iter().filter(|call| call.effective).map(|call| call.seq).collect();
    assert_eq!(effective, [1, 3, 5]);
    assert!(calls.windows(2).all(|two| two[0].answered <= two[1].sent && two[1].sent.is_some()));

    assert_eq!(calls[0].body.as_ref().unwrap()["data"]["key"], "value");
    assert_eq!(calls[0].answered_uid(), created.uid().as_deref());
    assert_eq!(calls[1].parameter("fieldManager"), Some("me"));
    assert_eq!(calls[2].content_type, "application/merge-patch+json");
    assert_eq!(calls[4].uid_precondition(), created.uid().as_deref());
    assert_eq!(calls[4].propagation_policy(), Some("Background"));
    assert_eq!(calls[4].answered_uid(), created.uid().as_deref());

    assert_eq!((log.count(Verb::Patch), log.len()), (2, 7));
    log.clear();
    assert!(log.is_empty());
    log.keep_bodies(false);
    maps.list(&ListParams::default()).await.unwrap();
    let call = &log.calls()[0];
    assert_eq!((call.seq, call.code, &call.answer), (8, Some(200), &None));
}

#[tokio::test]
async fn a_limited_user_is_refused_and_that_is_recorded() {
    let plane = Plane::shared().await;
    let (client, log) = plane.audited("alice");
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let refused = create(&maps, "x").await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    assert!(refused.to_string().contains("\"alice\""), "{refused}");
    let call = &log.calls()[0];
    assert_eq!((call.code, call.reason(), call.effective), (Some(403), Some("Forbidden"), false));
}

#[tokio::test]
async fn cut_before_the_second_call() {
    let (maps, log, other) = set_up("cut-before").await;
    log.cut_at(2, CutMode::Before);
    create(&maps, "a").await.unwrap();
    assert!(!log.is_cut());
    assert!(is_cut(&create(&maps, "b").await.unwrap_err()));
    assert!(log.is_cut());
    log.cut_off().await;
    assert!(is_cut(&maps.get("a").await.unwrap_err()));
    assert_eq!(names(&other).await, ["a"]);
    let outcomes: Vec<_> = log.calls().into_iter().map(|call| call.outcome).collect();
    assert_eq!(outcomes, [Outcome::Answered, Outcome::Dropped, Outcome::Dropped]);

    log.heal();
    assert!(!log.is_cut());
    maps.get("a").await.unwrap();
}

#[tokio::test]
async fn cut_after_the_second_call() {
    let (maps, log, other) = set_up("cut-after").await;
    log.cut_at(2, CutMode::After);
    create(&maps, "a").await.unwrap();
    assert!(is_cut(&create(&maps, "b").await.unwrap_err()));
    assert!(log.is_cut());
    assert!(is_cut(&create(&maps, "c").await.unwrap_err()));
    assert_eq!(names(&other).await, ["a", "b"], "the second took effect");
    let calls = log.calls();
    assert_eq!((&calls[1].outcome, calls[1].code, calls[1].effective), (&Outcome::Lost, Some(201), true));
    assert_eq!((&calls[2].outcome, calls[2].code, calls[2].effective), (&Outcome::Dropped, None, false));
}

#[tokio::test]
async fn a_cut_breaks_watches_and_what_is_under_way() {
    let (maps, log, other) = set_up("cut-watch").await;
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    create(&other, "a").await.unwrap();
    while !matches!(events.try_next().await, Ok(Some(WatchEvent::Added(map))) if map.name_any() == "a") {}
    assert_eq!(log.open_watches(), 1);

    let gate = Gate::new();
    log.once(|call| call.verb == Verb::Get, Fault::HoldAnswer(gate.clone()));
    let held = tokio::spawn({
        let maps = maps.clone();
        async move { maps.get("a").await }
    });
    gate.reached().await;
    log.cut_at(1, CutMode::After); // the watch does not count
    maps.watch(&WatchParams::default(), "0").await.map(drop).unwrap();
    create(&maps, "b").await.unwrap_err();
    assert!(log.is_cut());
    gate.release();
    assert!(is_cut(&held.await.unwrap().unwrap_err()));
    // The stream ends with an error at some point; events that had arrived may come first.
    loop {
        match events.next().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => break,
            None => panic!("a clean end"),
        }
    }
    assert!(is_cut(&maps.watch(&WatchParams::default(), "0").await.map(drop).unwrap_err()));
    drop(events);
    fixtures::eventually("no watch is open", async || (log.open_watches() == 0).then_some(())).await;
}

#[tokio::test]
async fn closed_watches_end_without_an_error() {
    let (maps, log, _) = set_up("close").await;
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    log.close_watches();
    while let Some(event) = events.next().await {
        event.unwrap();
    }
    assert_eq!((log.count(Verb::Watch), log.open_watches()), (1, 0));
    // The next one is not affected.
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    create(&maps, "a").await.unwrap();
    while !matches!(events.next().await.unwrap().unwrap(), WatchEvent::Added(map) if map.name_any() == "a") {}
}

#[tokio::test]
async fn refusals_and_losses() {
    let (maps, log, other) = set_up("faults").await;
    let named = |name: &'static str| move |call: &control_plane::audit::CallHead| call.name() == Some(name);
    log.once(named("a"), Fault::Fail(Refusal::status(429, "TooManyRequests", "slow down")));
    log.once(named("b"), Fault::FailAfter(Refusal::status(504, "Timeout", "too late")));
    log.once(named("c"), Fault::Drop);
    log.once(named("d"), Fault::LoseAnswer);
    log.once(named("e"), Fault::Fail(Refusal::text(404, "404 page not found")));
    log.once(named("f"), Fault::Delay(Duration::from_millis(50)));

    let code = |result: Result<ConfigMap, kube::Error>| match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(create(&maps, "a").await), 429);
    assert_eq!(code(create(&maps, "b").await), 504);
    assert!(is_cut(&create(&maps, "c").await.unwrap_err()));
    assert!(is_cut(&create(&maps, "d").await.unwrap_err()));
    assert_eq!(code(create(&maps, "e").await), 404);
    create(&maps, "f").await.unwrap();
    assert_eq!(names(&other).await, ["b", "d", "f"], "{log}");
    create(&maps, "a").await.unwrap(); // only the first time
    assert!(!log.is_cut());

    let calls = log.calls();
    use Outcome::{Answered, Dropped, Lost, Refused, Replaced};
    let outcomes: Vec<_> = calls.iter().map(|call| call.outcome.clone()).collect();
    assert_eq!(outcomes, [Refused, Replaced, Dropped, Lost, Refused, Answered, Answered]);
    let effective: Vec<_> = calls.iter().filter(|call| call.effective).filter_map(|call| call.name()).collect();
    assert_eq!(effective, ["b", "d", "f", "a"]);
    assert_eq!(calls[1].code, Some(201), "the server's own code");
    assert!(calls[5].answered.unwrap() - calls[4].answered.unwrap_or_default() >= Duration::from_millis(50));
}

#[tokio::test]
async fn a_paused_call_waits_for_the_gate() {
    let (maps, log, other) = set_up("gate").await;
    let old = create(&other, "a").await.unwrap();
    let gate = Gate::new();
    log.on_call({
        let gate = gate.clone();
        move |call| if call.verb == Verb::Delete { Fault::Pause(gate.clone()) } else { Fault::Pass }
    });
    let delete = tokio::spawn({
        let maps = maps.clone();
        let condition = Preconditions { uid: old.uid(), resource_version: None };
        async move { maps.delete("a", &DeleteParams::default().preconditions(condition)).await }
    });
    gate.reached().await;
    assert_eq!(gate.arrived(), 1);
    // Between the decision and the DELETE another one takes the place.
    other.delete("a", &DeleteParams::default()).await.unwrap();
    let new = create(&other, "a").await.unwrap();
    gate.release();
    assert!(matches!(delete.await.unwrap(), Err(kube::Error::Api(status)) if status.code == 409));
    assert_eq!(other.get("a").await.unwrap().uid(), new.uid());
    maps.delete("a", &DeleteParams::default()).await.unwrap(); // open for good
}

#[tokio::test]
async fn a_foreign_write_falls_exactly_between_two_calls() {
    let (maps, log, other) = set_up("between").await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    log.before_call({
        let (other, seen) = (other.clone(), Arc::clone(&seen));
        move |call| {
            let (other, seen) = (other.clone(), Arc::clone(&seen));
            async move {
                if call.verb == Verb::Update {
                    let patch = json!({"metadata": {"labels": {"by": "other"}}});
                    other.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
                }
                seen.lock().unwrap().push(call.seq);
            }
        }
    });
    let map = create(&maps, "a").await.unwrap();
    let conflict = maps.replace("a", &PostParams::default(), &map).await.unwrap_err();
    assert!(matches!(&conflict, kube::Error::Api(status) if status.code == 409), "{conflict}");
    assert_eq!(*seen.lock().unwrap(), [1, 2]);
    assert_eq!(log.len(), 2, "the foreign write is not in the record");
}

#[tokio::test]
async fn an_abandoned_call_is_told_apart() {
    let (maps, log, _) = set_up("abandon").await;
    log.once(|_| true, Fault::Pause(Gate::new()));
    assert!(tokio::time::timeout(Duration::from_millis(100), maps.get("a")).await.is_err());
    let call = &log.calls()[0];
    assert_eq!((&call.outcome, call.sent), (&Outcome::Abandoned, None));
}

#[tokio::test]
async fn retries_are_off_and_can_be_put_on() {
    let plane = Plane::shared().await;
    let attempts = async |client: Client, log: &AuditLog| {
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let refusal = Refusal::status(503, "ServiceUnavailable", "not now").header("retry-after", "0");
        log.once(|call| call.verb == Verb::List, Fault::Fail(refusal));
        (maps.list(&ListParams::default()).await.is_ok(), log.count(Verb::List))
    };
    let (client, log) = plane.audited("admin");
    assert_eq!(attempts(client, &log).await, (false, 1));
    let log = AuditLog::new();
    let client = log.retrying_client(plane.config()).unwrap();
    assert_eq!(attempts(client, &log).await, (true, 2));
}

#[tokio::test]
async fn several_clients_share_a_log() {
    let plane = Plane::shared().await;
    let log = AuditLog::new();
    let admin = log.client(plane.config()).unwrap();
    let bob = log.client(plane.config_as("bob")).unwrap();
    let stranger = log.client(plane.config_as("someone-else")).unwrap();
    log.cut_at(3, CutMode::Before);
    admin.apiserver_version().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(bob, "default");
    assert!(matches!(maps.get("x").await, Err(kube::Error::Api(status)) if status.code == 403));
    assert!(is_cut(&stranger.apiserver_version().await.unwrap_err()));
    assert!(is_cut(&admin.apiserver_version().await.unwrap_err()));
    assert_eq!(log.count(Verb::NonResource), 3);
}
