//! Input that cannot be meant: a typed error, nothing sent, nothing lost.

use std::sync::Arc;

use control_plane::{Plane, audit::AuditLog};
use kube::{ResourceExt, api::DynamicObject};
use kube_custody::{
    custodian::{Custodian, Desired, DesiredError, Error, IntentError, Phase, Problem},
    finalizer::Finalizer,
    graph,
    inventory::MemoryStore,
    object,
    ownership::{self, OwnershipPolicy},
};
use serde_json::{Value, json};

use crate::world::*;

const DEPENDS_ON: &str = "config.kubernetes.io/depends-on";

fn assert_silent(log: &AuditLog, case: &str) {
    let writes = log.calls_where(|c| c.verb.writes());
    assert!(writes.is_empty(), "{case}: {writes:#?}");
}

/// What the manifest of a ConfigMap turns into with more metadata.
fn with(namespace: &str, name: &str, metadata: Value) -> DynamicObject {
    let mut value =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}});
    let into = value["metadata"].as_object_mut().unwrap();
    into.extend(metadata.as_object().unwrap().clone());
    object(value)
}

type Judge = fn(&Error) -> bool;

fn is_field(error: &Error, field: &str) -> bool {
    matches!(error, Error::Desired { source: DesiredError::Field { field: named, .. } } if *named == field)
}

fn is_identity(error: &Error) -> bool {
    matches!(error, Error::Desired { source: DesiredError::Identity { .. } })
}

fn is_cycle(error: &Error, hops: usize) -> bool {
    matches!(error, Error::Intent(IntentError::Graph { source: graph::Error::Cycles(cycles) })
        if cycles.len() == 1 && cycles[0].path.len() == hops)
}

fn is_scope(error: &Error) -> bool {
    matches!(
        error,
        Error::Intent(IntentError::Scope {
            source: object::Error::NamespaceMissing { .. } | object::Error::NamespaceNotAllowed { .. }
        })
    )
}

#[tokio::test]
async fn every_bad_set_is_a_typed_error_and_sends_nothing() {
    let admin = client().await;
    let ns = new_namespace(&admin, "bad").await;
    let (operator, log) = Plane::shared().await.audited("admin");
    let custodian = builder(operator).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let good = [config_map(&ns, "good", &[])];
    assert_eq!(settle(&custodian, &admin, &track, &good).await.phase, Phase::Applied);

    let other = |name: &str, needs: &str| config_map(&ns, name, &[&format!("/namespaces/{ns}/ConfigMap/{needs}")]);
    let untyped = object(json!({"metadata": {"name": "x", "namespace": ns}}));
    let kind = |api_version: &str, kind: &str, metadata: Value| {
        object(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
    };
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "o"}]);
    let cases: Vec<(&str, Vec<DynamicObject>, Judge)> = vec![
        ("no kind", vec![untyped], is_identity),
        ("no name", vec![kind("v1", "ConfigMap", json!({"namespace": ns}))], is_identity),
        ("generateName", vec![kind("v1", "ConfigMap", json!({"namespace": ns, "generateName": "x-"}))], is_identity),
        ("generateName and name", vec![with(&ns, "x", json!({"generateName": "x-"}))], |e| is_field(e, "generateName")),
        ("name of 254", vec![config_map(&ns, &"x".repeat(254), &[])], is_identity),
        ("name that leaves the path", vec![config_map(&ns, "../x", &[])], is_identity),
        ("name that ends the path", vec![config_map(&ns, "good?x=", &[])], is_identity),
        ("namespace of 64", vec![config_map(&"n".repeat(64), "x", &[])], is_identity),
        ("namespace with a dot", vec![config_map("a.b", "x", &[])], is_identity),
        ("kind that is no path segment", vec![kind("v1", "../x", json!({"name": "x", "namespace": ns}))], is_identity),
        ("no namespace", vec![kind("v1", "ConfigMap", json!({"name": "x"}))], is_scope),
        ("namespace in cluster scope", vec![kind("v1", "Namespace", json!({"name": "x", "namespace": ns}))], is_scope),
        ("unknown kind", vec![kind("v1", "Confetti", json!({"name": "x", "namespace": ns}))], |e| {
            matches!(e, Error::UnknownKind { .. })
        }),
        ("unknown group", vec![kind("no.example.com/v1", "Thing", json!({"name": "x", "namespace": ns}))], |e| {
            matches!(e, Error::UnknownKind { .. })
        }),
        (
            "unserved version",
            vec![kind("apps/v1beta1", "Deployment", json!({"name": "x", "namespace": ns}))],
            |e| matches!(e, Error::UnservedVersion { served, .. } if served.contains(&"v1".to_owned())),
        ),
        ("twice", vec![config_map(&ns, "x", &[]), config_map(&ns, "x", &[])], |e| {
            matches!(e, Error::Desired { source: DesiredError::Duplicate(_) })
        }),
        (
            "two versions",
            vec![
                kind("autoscaling/v1", "HorizontalPodAutoscaler", json!({"name": "x", "namespace": ns})),
                kind("autoscaling/v2", "HorizontalPodAutoscaler", json!({"name": "x", "namespace": ns})),
            ],
            |e| matches!(e, Error::Desired { source: DesiredError::Duplicate(_) }),
        ),
        (
            "two groups",
            vec![
                kind("v1", "Event", json!({"name": "x", "namespace": ns})),
                kind("events.k8s.io/v1", "Event", json!({"name": "x", "namespace": ns})),
            ],
            |e| matches!(e, Error::Desired { source: DesiredError::TwoGroups(..) }),
        ),
        ("itself", vec![other("x", "x")], |e| is_cycle(e, 1)),
        ("cycle", vec![other("x", "y"), other("y", "z"), other("z", "x")], |e| is_cycle(e, 3)),
        ("unreadable edge", vec![with(&ns, "x", json!({"annotations": {DEPENDS_ON: "nonsense"}}))], |e| {
            matches!(e, Error::Intent(IntentError::Annotation { .. }))
        }),
        ("uid", vec![with(&ns, "x", json!({"uid": "u"}))], |e| is_field(e, "uid")),
        ("resourceVersion", vec![with(&ns, "x", json!({"resourceVersion": "1"}))], |e| is_field(e, "resourceVersion")),
        ("deletionTimestamp", vec![with(&ns, "x", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))], |e| {
            is_field(e, "deletionTimestamp")
        }),
        ("finalizers", vec![with(&ns, "x", json!({"finalizers": ["a.example.com/x"]}))], |e| is_field(e, "finalizers")),
        ("unqualified finalizer", vec![with(&ns, "x", json!({"finalizers": ["x"]}))], |e| is_field(e, "finalizers")),
        ("managedFields", vec![with(&ns, "x", json!({"managedFields": [{"manager": "x"}]}))], |e| {
            is_field(e, "managedFields")
        }),
        ("foreign owner", vec![with(&ns, "x", json!({"ownerReferences": owner}))], |e| is_field(e, "ownerReferences")),
        ("our label", vec![with(&ns, "x", json!({"labels": {format!("{MANAGER}/parent-uid"): "u"}}))], |e| {
            matches!(e, Error::Desired { source: DesiredError::ManagerKey { .. } })
        }),
        (
            "our back-pointer",
            vec![with(&ns, "x", json!({"annotations": {format!("{MANAGER}/back-pointer"): "{}"}}))],
            |e| matches!(e, Error::Desired { source: DesiredError::ManagerKey { .. } }),
        ),
    ];
    for (case, bad, judge) in cases {
        log.clear();
        // Together with what is fine: one bad object spoils the set, because nobody can tell what else was meant.
        let set: Vec<_> = good.iter().cloned().chain(bad).collect();
        let outcome = reconcile(&custodian, &reload(&admin, &track).await.unwrap(), &set).await;
        let error = outcome.error.as_ref().unwrap_or_else(|| panic!("{case}: {outcome:#?}"));
        assert!(judge(error), "{case}: {error:?}");
        assert!(!error.to_string().is_empty() && outcome.phase == Phase::Failed, "{case}");
        assert_silent(&log, case);
        assert!(outcome.into_action().is_err(), "{case}");
    }
    assert!(exists(&admin, &good[0]).await);
    log.clear();
    assert_eq!(settle(&custodian, &admin, &track, &good).await.phase, Phase::Applied);
    assert_silent(&log, "the good set again");
}

#[tokio::test]
async fn a_parent_in_its_own_set_is_refused_with_proxies_and_without() {
    let admin = client().await;
    let ns = new_namespace(&admin, "own-child").await;
    let track = parent(&admin, &ns, "track").await;
    let itself = object(json!({
        "apiVersion": "faros.pusher.com/v1alpha1", "kind": "GitTrack",
        "metadata": {"name": "track", "namespace": ns}, "spec": {"path": "/"},
    }));
    let (operator, log) = Plane::shared().await.audited("admin");
    let bare = Custodian::<GitTrack>::builder(operator.clone(), MANAGER).ownership(OwnershipPolicy::ClusterWide);
    for custodian in [builder(operator).build().unwrap(), bare.build().unwrap()] {
        let outcome = reconcile(&custodian, &track, std::slice::from_ref(&itself)).await;
        let Some(Error::Intent(IntentError::Ownership { source })) = outcome.error.as_ref() else {
            panic!("{outcome:#?}")
        };
        assert!(matches!(source, ownership::Error::ChildIsParent { .. }), "{source}");
    }
    assert_silent(&log, "a parent that is its own child");
}

#[tokio::test]
async fn declarations_about_objects_by_the_api_are_checked_like_annotations() {
    let admin = client().await;
    let ns = new_namespace(&admin, "bad-api").await;
    let (operator, log) = Plane::shared().await.audited("admin");
    let custodian = builder(operator).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let (x, y) = (id(&format!("ConfigMap {ns}/x")), id(&format!("ConfigMap {ns}/y")));
    let try_it = async |declare: &dyn for<'d> Fn(&'d mut Desired) -> &'d mut Desired| {
        let mut desired = Desired::from(vec![config_map(&ns, "x", &[]), config_map(&ns, "y", &[])]);
        declare(&mut desired);
        custodian.reconcile(&track, async |_: Arc<GitTrack>| Ok::<_, std::io::Error>(desired)).await.error
    };
    let selfish = try_it(&|d| d.depends_on(x.clone(), x.clone())).await.unwrap();
    assert!(is_cycle(&selfish, 1), "{selfish:?}");
    let round = try_it(&|d| d.depends_on(x.clone(), y.clone()).depends_on(y.clone(), x.clone())).await.unwrap();
    assert!(is_cycle(&round, 2), "{round:?}");
    let absent = id(&format!("ConfigMap {ns}/absent"));
    for error in [
        try_it(&|d| d.depends_on(absent.clone(), x.clone())).await.unwrap(),
        try_it(&|d| d.keep(absent.clone())).await.unwrap(),
    ] {
        assert!(matches!(&error, Error::Desired { source: DesiredError::NotInSet(id) } if *id == absent), "{error:?}");
    }
    assert_silent(&log, "declarations");
    assert!(reload(&admin, &track).await.unwrap().finalizers().is_empty(), "not even custody was taken");
}

#[tokio::test]
async fn unqualified_names_are_refused_before_there_is_a_custodian() {
    let admin = client().await;
    for manager in ["gittrack", "", "Git.example.com", "a..b", "x.kubernetes.io", "example.com/x", &"a.".repeat(80)] {
        let built = Custodian::<GitTrack>::builder(admin.clone(), manager).build();
        assert!(matches!(built, Err(Error::Manager(_))), "{manager}");
    }
    for finalizer in ["unqualified", "", "a.example.com/", "a.example.com/x/y", "UPPER.example.com/x"] {
        assert!(Finalizer::new(finalizer).is_err(), "{finalizer}");
        let built = builder(admin.clone()).legacy_finalizers([finalizer]).build();
        // What an earlier version of the operator called itself need not be qualified to be taken off.
        assert!(built.is_ok() || matches!(built, Err(Error::FinalizerName { .. })), "{finalizer}");
    }
}

#[tokio::test]
async fn names_at_the_limit_are_fine_and_what_only_the_server_can_judge_stops_nothing_else() {
    let admin = client().await;
    let ns = new_namespace(&admin, "limits").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let longest = config_map(&ns, &format!("{}.{}", "x".repeat(63), "y".repeat(189)), &[]);
    assert_eq!(longest.name_any().len(), 253);
    let odd = cluster_role(&format!("system:{ns}_node:x"), &[]);
    let upper = config_map(&ns, "Upper", &[]);
    let set = [longest.clone(), odd.clone(), upper.clone()];
    let outcome = eventually_unapplied(&custodian, &admin, &track, &set).await;
    let [unapplied] = outcome.unapplied.as_slice() else { panic!("{outcome:#?}") };
    assert!(
        matches!(&unapplied.problem, Problem::Refused { words } if words.contains("lowercase RFC 1123")),
        "{unapplied}"
    );
    assert!(exists(&admin, &longest).await && exists(&admin, &odd).await);

    let outcome = settle(&custodian, &admin, &track, &set[..2]).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    delete(&admin, &track).await;
    assert_eq!(settle(&custodian, &admin, &track, &set[..2]).await.phase, Phase::Released);
    assert!(!exists(&admin, &longest).await && !exists(&admin, &odd).await);
}

#[tokio::test]
async fn objects_of_one_kind_may_be_written_in_several_versions() {
    let admin = client().await;
    let ns = new_namespace(&admin, "versions").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let scaler = |version: &str, name: &str| {
        object(json!({
            "apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name, "namespace": ns},
            "spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}},
        }))
    };
    let set = [scaler("v1", "one"), scaler("v2", "two")];
    let outcome = settle(&custodian, &admin, &track, &set).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    // And one object may be written in another version than before.
    let moved = [scaler("v2", "one"), scaler("v1", "two")];
    let before = live(&admin, &set[0]).await.unwrap().uid();
    let outcome = settle(&custodian, &admin, &track, &moved).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    assert_eq!(live(&admin, &moved[0]).await.unwrap().uid(), before);
    delete(&admin, &track).await;
    assert_eq!(settle(&custodian, &admin, &track, &set).await.phase, Phase::Released);
}

#[tokio::test]
async fn a_custom_resource_whose_definition_is_in_the_set_waits_for_it() {
    let admin = client().await;
    let ns = new_namespace(&admin, "crd-in-set").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let crd = definition(&ns, &[("v1", true)]);
    let resource = custom(&ns, "v1", "one");
    let set = [resource.clone(), crd.clone()];
    let outcome = settle(&custodian, &admin, &track, &set).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    assert!(exists(&admin, &resource).await);
    delete(&admin, &track).await;
    let outcome = settle(&custodian, &admin, &track, &set).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    assert!(!exists(&admin, &crd).await);
}

#[tokio::test]
async fn apply_waits_for_an_object_outside_of_the_set_and_teardown_does_not() {
    let admin = client().await;
    let ns = new_namespace(&admin, "external").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let outside = config_map(&ns, "outside", &[]);
    let set = [config_map(&ns, "x", &[&format!("/namespaces/{ns}/ConfigMap/outside")])];
    let outcome = eventually_unapplied(&custodian, &admin, &track, &set).await;
    let [unapplied] = outcome.unapplied.as_slice() else { panic!("{outcome:#?}") };
    assert_eq!(unapplied.problem, Problem::Waits { on: id(&format!("ConfigMap {ns}/outside")) });
    assert!(!exists(&admin, &set[0]).await);

    create(&admin, &outside).await;
    assert_eq!(settle(&custodian, &admin, &track, &set).await.phase, Phase::Applied);
    delete(&admin, &track).await;
    assert_eq!(settle(&custodian, &admin, &track, &set).await.phase, Phase::Released);
    assert!(exists(&admin, &outside).await && !exists(&admin, &set[0]).await);
}

#[tokio::test]
async fn a_damaged_record_that_cannot_be_completed_stops_apply_and_prune_and_holds_what_it_may_be_about() {
    let admin = client().await;
    let ns = new_namespace(&admin, "damaged").await;
    let (operator, log) = Plane::shared().await.audited("admin");
    let store = Arc::new(MemoryStore::new());
    let custodian = builder(operator).store(Arc::<MemoryStore>::clone(&store)).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let set = [
        config_map(&ns, "base", &[]),
        config_map(&ns, "top", &[&format!("/namespaces/{ns}/ConfigMap/base")]),
        config_map(&ns, "free", &[]),
    ];
    assert_eq!(settle(&custodian, &admin, &track, &set).await.phase, Phase::Applied);
    let home = kube_custody::object::ParentRef::of(&track).unwrap();
    assert!(store.damage(&home.id, &id(&format!("ConfigMap {ns}/top"))));

    // Nobody knows any more where to look for what it said.
    let noted = format!("{MANAGER}/group-kinds");
    let forget = object(json!({
        "apiVersion": "faros.pusher.com/v1alpha1", "kind": "GitTrack", "metadata": {"name": "track", "namespace": ns},
    }));
    patch(&admin, &forget, json!({"metadata": {"annotations": {noted: null}}})).await;

    log.clear();
    let outcome = reconcile(&custodian, &reload(&admin, &track).await.unwrap(), &set[..1]).await;
    assert!(matches!(outcome.error, Some(Error::Inventory(_))) && outcome.damage.len() == 1, "{outcome:#?}");
    assert_silent(&log, "damaged");

    delete(&admin, &track).await;
    let outcome = control_plane::fixtures::eventually("what the damage cannot concern goes", async || {
        let outcome = reconcile(&custodian, &reload(&admin, &track).await?, &set).await;
        (!exists(&admin, &set[2]).await).then_some(outcome)
    })
    .await;
    assert_eq!(outcome.phase, Phase::Deleting, "{outcome:#?}");
    assert_eq!(outcome.damage.len(), 1, "{outcome:#?}");
    assert!(exists(&admin, &set[0]).await && exists(&admin, &set[1]).await, "top is unreadable, and needs base");
    assert!(reload(&admin, &track).await.is_some());
}

#[tokio::test]
async fn c35_an_error_from_the_author_prunes_nothing() {
    let admin = client().await;
    let ns = new_namespace(&admin, "c35").await;
    let (operator, log) = Plane::shared().await.audited("admin");
    let custodian = builder(operator).build().unwrap();
    let track = parent(&admin, &ns, "track").await;
    let set: Vec<_> = (0..5).map(|i| config_map(&ns, &format!("x{i}"), &[])).collect();
    assert_eq!(settle(&custodian, &admin, &track, &set).await.phase, Phase::Applied);
    log.clear();
    let live = reload(&admin, &track).await.unwrap();
    let fails = async |_: Arc<GitTrack>| Err::<Desired, _>(std::io::Error::other("git is away"));
    let outcome = custodian.reconcile(&live, fails).await;
    assert!(matches!(&outcome.error, Some(Error::Render { source }) if source.to_string() == "git is away"));
    assert_silent(&log, "an error");
    for object in &set {
        assert!(exists(&admin, object).await);
    }
}
