//! Finalizers against the real API server, garbage collector and namespace controller.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use control_plane::{
    Plane,
    audit::Verb,
    fixtures::{self, Subject, eventually_ok, ns, rule},
};
use futures::{StreamExt, future::join_all};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{Controller, controller::Action, watcher},
};
use kube_custody::{
    answer::Answer,
    finalizer::{AnnotationUpdate, Ensured, Error, Event, Finalizer, Outcome, Progress, ReconcileError, Released},
    object::{LiveRef, ObjectId, ResourceKind, Scope, Uid},
};
use serde_json::{Value, json};

const OURS: &str = "ours.example.com/cleanup";
const SECOND: &str = "ours.example.com/applied";
const A: &str = "a.example.com/x";
const B: &str = "b.example.com/x";

fn ours() -> Finalizer {
    Finalizer::new(OURS).unwrap()
}

async fn done(_: Event<ConfigMap>) -> Result<Progress, std::io::Error> {
    Ok(Progress::Done)
}

async fn never(event: Event<ConfigMap>) -> Result<Progress, std::io::Error> {
    panic!("must not be called: {event:?}")
}

fn config_maps() -> ResourceKind {
    ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
}

fn live_ref(object: &ConfigMap) -> LiveRef {
    LiveRef::new(ObjectId::of_resource(object).unwrap(), Uid::of(&object.metadata).unwrap())
}

/// A parent in a namespace of its own.
async fn parent(client: &Client, finalizers: &[&str]) -> (Api<ConfigMap>, ConfigMap) {
    let namespace = fixtures::namespace(client, "finalizer").await;
    let api = Api::namespaced(client.clone(), &namespace);
    let metadata = json!({"name": "parent", "namespace": namespace, "finalizers": finalizers});
    // With data, because the server records no field managers on an object that was created without any field.
    let object = json!({"metadata": metadata, "data": {"key": "value"}});
    let object = fixtures::create(&api, object).await;
    (api, object)
}

async fn delete(api: &Api<ConfigMap>) {
    api.delete("parent", &DeleteParams::background()).await.unwrap();
}

async fn set_finalizers(api: &Api<ConfigMap>, finalizers: &[&str]) {
    let patch = json!({"metadata": {"finalizers": finalizers}});
    api.patch("parent", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn finalizers(api: &Api<ConfigMap>) -> Vec<String> {
    api.get("parent").await.unwrap().metadata.finalizers.unwrap_or_default()
}

/// The same object through a client whose calls are recorded, and the verbs of these calls.
fn recorded(
    plane: &Plane,
    object: &ConfigMap,
) -> (Api<ConfigMap>, impl Fn() -> Vec<Verb>, control_plane::audit::AuditLog) {
    let (client, log) = plane.audited("admin");
    let api = Api::namespaced(client, object.metadata.namespace.as_deref().unwrap());
    let calls = log.clone();
    (api, move || calls.calls().iter().map(|c| c.head.verb).collect(), log)
}

#[tokio::test]
async fn one_life_from_the_first_finalizer_to_the_release() {
    let plane = Plane::shared().await;
    let (api, object) = parent(&plane.client(), &[]).await;
    let (recorded, verbs, log) = recorded(plane, &object);
    let reconcile = async |progress: Progress| {
        let act = async |_| Ok::<_, std::io::Error>(progress);
        ours().reconcile(&recorded, &object, act).await.unwrap()
    };
    assert_eq!(reconcile(Progress::Done).await, Outcome::Applied);
    assert_eq!(verbs(), [Verb::Get, Verb::Patch, Verb::Get]);
    let managed = api.get("parent").await.unwrap().metadata.managed_fields.unwrap();
    assert!(
        managed.iter().any(|m| m.manager.as_deref().is_some_and(|m| m.starts_with("ours.example.com/"))),
        "{managed:?}"
    );

    log.clear();
    assert_eq!(reconcile(Progress::Done).await, Outcome::Applied);
    assert_eq!(verbs(), [Verb::Get]);

    delete(&api).await;
    let later = Duration::from_secs(3);
    let pending = reconcile(Progress::after(later)).await;
    let since = api.get("parent").await.unwrap().metadata.deletion_timestamp.unwrap().0;
    assert_eq!(pending, Outcome::Pending { after: later, deleting_since: Some(since) });

    log.clear();
    assert_eq!(reconcile(Progress::Done).await, Outcome::Released);
    assert_eq!(verbs(), [Verb::Get, Verb::Patch]);
    assert_eq!(api.get_opt("parent").await.unwrap(), None);
    assert_eq!(reconcile(Progress::Done).await, Outcome::Gone);
}

#[tokio::test]
async fn a_delete_between_the_first_finalizer_and_its_confirmation_leads_to_cleanup() {
    let plane = Plane::shared().await;
    let (api, object) = parent(&plane.client(), &[]).await;
    let (recorded, verbs, log) = recorded(plane, &object);
    let reads = Arc::new(Mutex::new(0));
    log.before_call(move |call| {
        let (api, reads) = (api.clone(), Arc::clone(&reads));
        async move {
            let second = call.verb == Verb::Get && {
                let mut reads = reads.lock().unwrap();
                *reads += 1;
                *reads == 2
            };
            if second {
                delete(&api).await;
            }
        }
    });
    let outcome = ours()
        .reconcile(&recorded, &object, async |event| {
            assert!(matches!(event, Event::Cleanup(_)), "{event:?}");
            Ok::<_, std::io::Error>(Progress::Done)
        })
        .await;
    assert_eq!(outcome.unwrap(), Outcome::Released);
    assert_eq!(verbs(), [Verb::Get, Verb::Patch, Verb::Get, Verb::Patch]);
}

#[tokio::test]
async fn c21_s41_nothing_is_added_to_an_object_that_is_being_deleted() {
    let plane = Plane::shared().await;
    let (api, object) = parent(&plane.client(), &[A]).await;
    delete(&api).await;
    assert_eq!(ours().reconcile(&api, &object, never).await.unwrap(), Outcome::NotHeld);

    // Deleted between read and patch.
    let (api, object) = parent(&plane.client(), &[A]).await;
    let (recorded, verbs, log) = recorded(plane, &object);
    let other = api.clone();
    log.before_call(move |call| {
        let other = other.clone();
        async move {
            if call.verb == Verb::Patch {
                delete(&other).await;
            }
        }
    });
    assert_eq!(ours().reconcile(&recorded, &object, never).await.unwrap(), Outcome::NotHeld);
    assert_eq!(verbs(), [Verb::Get, Verb::Patch, Verb::Get]);
    assert_eq!(finalizers(&api).await, [A]);
}

#[tokio::test]
async fn c22_s42_s43_neighbours_survive_writers_in_between() {
    let plane = Plane::shared().await;
    let (api, object) = parent(&plane.client(), &[A, OURS, B]).await;
    delete(&api).await;
    let (recorded, verbs, log) = recorded(plane, &object);
    let (other, once) = (api.clone(), Arc::new(Mutex::new(true)));
    log.before_call(move |call| {
        let (other, once) = (other.clone(), Arc::clone(&once));
        async move {
            if call.verb == Verb::Patch && std::mem::take(&mut *once.lock().unwrap()) {
                set_finalizers(&other, &[OURS, B, OURS]).await;
            }
        }
    });
    assert_eq!(ours().reconcile(&recorded, &object, done).await.unwrap(), Outcome::Released);
    assert_eq!(verbs(), [Verb::Get, Verb::Patch, Verb::Get, Verb::Patch]);
    assert_eq!(finalizers(&api).await, [B]);
}

#[tokio::test]
async fn another_incarnation_is_left_alone() {
    let plane = Plane::shared().await;
    let (api, old) = parent(&plane.client(), &[OURS]).await;
    let (recorded, _, log) = recorded(plane, &old);
    delete(&api).await;
    // While the old one's cleanup runs, it is released by force and created again, with our finalizer in its place.
    let other = api.clone();
    let once = Arc::new(Mutex::new(true));
    let again = json!({"metadata": {"name": "parent", "finalizers": [OURS]}});
    log.before_call(move |call| {
        let (other, once, again) = (other.clone(), Arc::clone(&once), again.clone());
        async move {
            if call.verb == Verb::Patch && std::mem::take(&mut *once.lock().unwrap()) {
                set_finalizers(&other, &[]).await;
                fixtures::create(&other, again).await;
            }
        }
    });
    let outcome = ours().reconcile(&recorded, &old, done).await.unwrap();
    let new = api.get("parent").await.unwrap();
    assert_eq!(outcome, Outcome::Recreated { uid: Uid::of(&new.metadata).unwrap() });
    assert_eq!(finalizers(&api).await, [OURS]);
    assert_eq!(ours().reconcile(&recorded, &old, never).await.unwrap(), outcome);
    assert!(matches!(
        ours().release(&plane.client(), &config_maps(), &live_ref(&old)).await,
        Ok(Released::Recreated(_))
    ));
}

#[tokio::test]
async fn writers_that_add_to_one_annotation_at_once_lose_nothing() {
    const KEY: &str = "ours.example.com/group-kinds";
    let plane = Plane::shared().await;
    let client = plane.client();
    let (api, object) = parent(&client, &[A]).await;
    let (resource, target) = (config_maps(), live_ref(&object));
    let second = Finalizer::new(SECOND).unwrap();
    let kinds = ["ConfigMap", "Secret", "Role.rbac.authorization.k8s.io", "Service", "Deployment.apps", "Job.batch"];
    let ensure = |kind: &'static str| {
        let (client, resource, target, second) = (&client, &resource, &target, &second);
        async move {
            let grow = AnnotationUpdate::new(KEY, |old: Option<&str>| match old {
                Some(old) if old.split(',').any(|k| k == kind) => None,
                Some(old) => Some(format!("{old},{kind}")),
                None => Some(kind.to_owned()),
            });
            second.ensure(client, resource, target, &[grow]).await.unwrap()
        }
    };
    for ensured in join_all(kinds.map(ensure)).await {
        assert!(matches!(ensured, Ensured::Held(_)), "{ensured:?}");
    }
    let live = api.get("parent").await.unwrap().metadata;
    let annotations = live.annotations.unwrap();
    let mut found: Vec<_> = annotations[KEY].split(',').collect();
    found.sort_unstable();
    let mut expected = kinds;
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(live.finalizers.unwrap(), [A, SECOND]);

    // On a parent that is being deleted the door is closed, and stays so while nothing else changes.
    delete(&api).await;
    assert!(matches!(ensure("Pod").await, Ensured::Deleting(_)));
    let both = ours().and(SECOND).unwrap();
    assert!(matches!(both.release(&client, &resource, &target).await, Ok(Released::Off(_))));
    assert!(matches!(ensure("Pod").await, Ensured::Deleting(_)));
    assert_eq!(finalizers(&api).await, [A]);
}

/// Denies updates of ConfigMaps of one namespace that have no `data.ref`, as a validating webhook of a kind would.
async fn policy(client: &Client, namespace: &str) -> String {
    let name = ns("refs");
    let policy = json!({"metadata": {"name": name}, "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                "operations": ["UPDATE"]}]},
        "validations": [{"expression": "has(object.data) && 'ref' in object.data", "message": "data.ref is missing"}]}});
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    fixtures::create(&Api::<ValidatingAdmissionPolicy>::all(client.clone()), policy).await;
    fixtures::create(&Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()), binding).await;
    name
}

#[tokio::test]
async fn c20_a_policy_that_denies_the_release_is_quoted_and_can_be_satisfied() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (api, object) = parent(&client, &[OURS]).await;
    let policy = policy(&client, object.metadata.namespace.as_deref().unwrap()).await;
    let probe = PatchParams { dry_run: true, ..PatchParams::default() };
    eventually_ok("the policy is enforced", async || {
        let label = json!({"metadata": {"labels": {"probe": "x"}}});
        match api.patch("parent", &probe, &Patch::Merge(label)).await {
            Err(kube::Error::Api(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    delete(&api).await;
    let error = ours().reconcile(&api, &object, done).await.unwrap_err();
    let ReconcileError::Finalizer(Error::Write { refusal, .. }) = &error else { panic!("{error}") };
    assert_eq!(*refusal.answer(), Answer::Denied { by: Some(format!("ValidatingAdmissionPolicy {policy}")) });
    assert!(error.to_string().contains("data.ref is missing"), "{error}");
    assert_eq!(finalizers(&api).await, [OURS]);

    let satisfied = json!({"data": {"ref": "r"}});
    api.patch("parent", &PatchParams::default(), &Patch::Merge(satisfied)).await.unwrap();
    assert_eq!(ours().reconcile(&api, &object, done).await.unwrap(), Outcome::Released);
    fixtures::delete(&Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()), &policy).await;
    fixtures::delete(&Api::<ValidatingAdmissionPolicy>::all(client), &policy).await;
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let plane = Plane::shared().await;
    let (api, object) = parent(&plane.client(), &[]).await;
    let namespace = object.metadata.namespace.clone().unwrap();
    let client = fixtures::service_account_client(plane, &namespace, "reader").await;
    let limited = Api::<ConfigMap>::namespaced(client, &namespace);
    let error = ours().reconcile(&limited, &object, never).await.unwrap_err();
    let ReconcileError::Finalizer(Error::Read { refusal, .. }) = &error else { panic!("{error}") };
    assert_eq!(*refusal.answer(), Answer::Forbidden);

    let account = Subject::service_account(&namespace, "reader");
    let _grant =
        fixtures::grant(&plane.client(), &account, Some(&namespace), vec![rule("", &["configmaps"], &["get"])]).await;
    let error = ours().reconcile(&limited, &object, never).await.unwrap_err();
    assert!(error.to_string().contains("cannot patch resource \"configmaps\""), "{error}");

    let _grant =
        fixtures::grant(&plane.client(), &account, Some(&namespace), vec![rule("", &["configmaps"], &["patch"])]).await;
    assert_eq!(ours().reconcile(&limited, &object, done).await.unwrap(), Outcome::Applied, "get and patch are enough");
    assert_eq!(finalizers(&api).await, [OURS]);
}

#[tokio::test]
async fn c23_names_of_earlier_versions_do_not_strand_custom_resources() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let group = format!("{}.example.com", ns("legacy"));
    let crd = json!({"metadata": {"name": format!("widgets.{group}")}, "spec": {
        "group": group, "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    fixtures::apply_crd(&client, &fixtures::from(crd)).await;
    let namespace = fixtures::namespace(&client, "legacy").await;
    let resource = ResourceKind::new(&group, "v1", "Widget", "widgets", Scope::Namespaced);
    let kind = resource.api_resource();
    let api = Api::<kube::core::DynamicObject>::namespaced_with(client.clone(), &namespace, &kind);
    let widget = json!({"apiVersion": format!("{group}/v1"), "kind": "Widget",
        "metadata": {"name": "w", "finalizers": ["ours.example.com", A]}});
    let widget = api.create(&PostParams::default(), &fixtures::from(widget)).await.unwrap();
    api.delete("w", &DeleteParams::background()).await.unwrap();
    let finalizer = ours().legacy(["ours.example.com"]).unwrap();
    let cleaned = Mutex::new(false);
    let outcome = finalizer
        .reconcile_with(&api, &widget, &kind, async |event| {
            *cleaned.lock().unwrap() = matches!(event, Event::Cleanup(_));
            Ok::<_, std::io::Error>(Progress::Done)
        })
        .await;
    assert_eq!(outcome.unwrap(), Outcome::Released);
    assert!(*cleaned.lock().unwrap());
    assert_eq!(api.get("w").await.unwrap().metadata.finalizers.unwrap(), [A]);
    let none: Value = json!({"metadata": {"finalizers": null}});
    api.patch("w", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
}

#[tokio::test]
async fn s45_the_finalizer_is_released_in_a_namespace_that_is_being_deleted() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (api, object) = parent(&client, &[]).await;
    assert_eq!(ours().reconcile(&api, &object, done).await.unwrap(), Outcome::Applied);
    let namespace = object.metadata.namespace.clone().unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.delete(&namespace, &DeleteParams::background()).await.unwrap();
    eventually_ok("the namespace controller deletes the parent", async || {
        let live = api.get("parent").await.map_err(|e| e.to_string())?;
        live.metadata.deletion_timestamp.map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await;
    assert_eq!(ours().reconcile(&api, &object, done).await.unwrap(), Outcome::Released);
    fixtures::gone(namespaces, &namespace).await;
}

struct Context {
    finalizer: Finalizer,
    api: Api<ConfigMap>,
    events: Mutex<Vec<&'static str>>,
}

async fn reconcile(object: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, ReconcileError<std::io::Error>> {
    let outcome = context
        .finalizer
        .reconcile(&context.api, &object, async |event| {
            tokio::task::yield_now().await;
            let (word, progress) = match event {
                Event::Apply(_) => ("apply", Progress::Done),
                // The first cleanup is not finished; nothing but the requeue leads to the second.
                Event::Cleanup(_) if context.events.lock().unwrap().ends_with(&["cleanup"]) => {
                    ("cleanup", Progress::Done)
                }
                Event::Cleanup(_) => ("cleanup", Progress::after(Duration::from_millis(200))),
            };
            context.events.lock().unwrap().push(word);
            Ok(progress)
        })
        .await?;
    Ok(outcome.into())
}

#[tokio::test]
async fn c25_s46_in_a_controller_that_is_restarted_in_the_middle_of_the_cleanup() {
    let plane = Plane::shared().await;
    let (api, _) = parent(&plane.client(), &[]).await;
    let start = || {
        let context = Arc::new(Context { finalizer: ours(), api: api.clone(), events: Mutex::default() });
        let controller = Controller::new(api.clone(), watcher::Config::default().fields("metadata.name=parent"));
        let again = |_, error: &ReconcileError<std::io::Error>, _| panic!("{error}");
        let run = controller.run(reconcile, again, Arc::clone(&context)).for_each(async |_| {});
        (tokio::spawn(run), context)
    };
    let (first, context) = start();
    eventually_ok("applied", async || match context.events.lock().unwrap().first() {
        Some(&"apply") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    delete(&api).await;

    let (second, context) = start();
    fixtures::gone(api.clone(), "parent").await;
    assert_eq!(*context.events.lock().unwrap(), ["cleanup", "cleanup"]);
    second.abort();
}
