//! Single histories, through the HTTP client.

use std::{future::Future, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Api;
use kube_core::{DynamicObject, ObjectMeta};
use kube_runtime::controller::Action;
use serde_json::json;

use super::{
    super::{AnnotationUpdate, Ensured, Error, Event, Finalizer, Outcome, Plan, Progress, ReconcileError, Released},
    world::{LEGACY, OURS, SECOND, World, config_maps, failure, target},
};
use crate::{answer::Answer, object::Uid};

const A: &str = "a.example.com/x";
const B: &str = "b.example.com/x";

fn ours() -> Finalizer {
    Finalizer::new(OURS).unwrap()
}

fn api(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client(), "n")
}

/// The object as a cache would have it.
fn cached(uid: &str, finalizers: &[&str]) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some("parent".into()),
        namespace: Some("n".into()),
        uid: Some(uid.into()),
        finalizers: Some(finalizers.iter().map(|f| (*f).to_owned()).collect()),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}

async fn never(event: Event<ConfigMap>) -> Result<Progress, std::io::Error> {
    panic!("must not be called: {event:?}")
}

async fn done(_: Event<ConfigMap>) -> Result<Progress, std::io::Error> {
    Ok(Progress::Done)
}

#[tokio::test]
async fn the_first_finalizer_is_confirmed_by_a_live_read_before_apply() {
    let world = World::with("u1", &[]);
    let seen = ours()
        .reconcile(&api(&world), &cached("u1", &[]), async |event| match event {
            Event::Apply(object) => {
                assert_eq!(object.metadata.finalizers.as_deref(), Some(&[OURS.to_owned()][..]));
                Ok::<_, std::io::Error>(Progress::Done)
            }
            Event::Cleanup(_) => panic!("not deleting"),
        })
        .await
        .unwrap();
    assert_eq!(seen, Outcome::Applied);
    assert_eq!(world.calls(), ["GET", "PATCH", "GET"]);
    let (body, query) = world.state().bodies.remove(0);
    assert_eq!(
        body,
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u1"},
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "test", "path": "/metadata/deletionTimestamp", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [OURS]},
        ])
    );
    assert!(query.contains("fieldManager=ours.example.com"), "{query}");

    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[OURS]), done).await.unwrap(), Outcome::Applied);
    assert_eq!(world.calls(), ["GET", "PATCH", "GET", "GET"], "nothing to do costs one read");
}

#[tokio::test]
async fn a_delete_that_wins_against_the_first_finalizer_is_noticed() {
    let world = World::with("u1", &[]);
    world.interfere(|state, _, calls| {
        if calls == 2 {
            state.object = None;
        }
    });
    let outcome = ours().reconcile(&api(&world), &cached("u1", &[]), never).await.unwrap();
    assert_eq!(outcome, Outcome::Gone);
}

#[tokio::test]
async fn c21_s41_nothing_is_added_to_an_object_that_is_being_deleted() {
    // Deleted live, while the cache still shows it alive.
    let world = World::with("u1", &[A]);
    world.state().delete();
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[A]), never).await.unwrap(), Outcome::NotHeld);
    assert_eq!(world.calls(), ["GET"]);

    // Deleted between our read and our patch.
    let world = World::with("u1", &[A]);
    world.interfere(|state, method, _| {
        if method == "PATCH" {
            state.delete();
        }
    });
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[A]), never).await.unwrap(), Outcome::NotHeld);
    assert_eq!(world.state().finalizers(), [A]);

    // After the cleanup, while somebody else still holds the object: a second pass is a no-op.
    let world = World::with("u1", &[OURS, B]);
    world.state().delete();
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[OURS, B]), done).await.unwrap(), Outcome::Released);
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[OURS, B]), never).await.unwrap(), Outcome::NotHeld);
    assert_eq!(world.state().finalizers(), [B]);
}

#[tokio::test]
async fn c22_s42_s43_a_neighbour_that_leaves_between_read_and_patch_is_not_mistaken_for_ours() {
    let world = World::with("u1", &[A, OURS, B]);
    world.state().delete();
    world.interfere(|state, method, calls| {
        if method == "PATCH" && calls == 1 {
            state.edit(|meta| meta.finalizers.as_mut().unwrap().retain(|f| f != A));
        }
    });
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[A, OURS, B]), done).await.unwrap(), Outcome::Released);
    assert_eq!(world.calls(), ["GET", "PATCH", "GET", "PATCH"]);
    assert_eq!(world.state().finalizers(), [B]);
}

#[tokio::test]
async fn c22_two_adders_leave_one_finalizer() {
    let world = World::with("u1", &[A]);
    world.interfere(|state, method, calls| {
        if method == "PATCH" && calls == 1 {
            state.edit(|meta| meta.finalizers.as_mut().unwrap().push(OURS.into()));
        }
    });
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[A]), done).await.unwrap(), Outcome::Applied);
    assert_eq!(world.state().finalizers(), [A, OURS]);
}

#[tokio::test]
async fn c22_duplicates_of_ours_go_and_order_stays() {
    let world = World::with("u1", &[A, OURS, B, OURS]);
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[]), done).await.unwrap(), Outcome::Applied);
    assert_eq!(world.state().finalizers(), [A, OURS, B]);
    world.state().edit(|meta| meta.finalizers.as_mut().unwrap().push(OURS.into()));
    world.state().delete();
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[]), done).await.unwrap(), Outcome::Released);
    assert_eq!(world.state().finalizers(), [A, B]);
}

#[tokio::test]
async fn c23_legacy_names_are_cleaned_up_for_and_removed_but_never_added() {
    let finalizer = ours().legacy([LEGACY]).unwrap();
    let world = World::with("u1", &[LEGACY, A]);
    assert_eq!(finalizer.reconcile(&api(&world), &cached("u1", &[]), done).await.unwrap(), Outcome::Applied);
    assert_eq!(world.state().finalizers(), [LEGACY, A, OURS]);

    // An object that only an old version ever held still gets its cleanup.
    let world = World::with("u1", &[LEGACY, A]);
    world.state().delete();
    let mut cleaned = false;
    let outcome = finalizer
        .reconcile(&api(&world), &cached("u1", &[]), |event| {
            cleaned = matches!(event, Event::Cleanup(_));
            done(event)
        })
        .await
        .unwrap();
    assert_eq!((outcome, cleaned), (Outcome::Released, true));
    assert_eq!(world.state().finalizers(), [A]);
}

#[tokio::test]
async fn c47_several_own_finalizers_leave_in_one_patch() {
    let both = ours().and(SECOND).unwrap().legacy([LEGACY]).unwrap();
    let world = World::with("u1", &[OURS, A, SECOND, LEGACY]);
    let Released::Off(meta) = both.release(&world.client(), &config_maps(), &target("u1")).await.unwrap() else {
        panic!("still there")
    };
    assert_eq!(meta.finalizers.as_deref(), Some(&[A.to_owned()][..]));
    assert_eq!(world.calls(), ["GET", "PATCH"]);
    assert_eq!(both.to_string(), format!("{OURS}, {SECOND}"));
}

#[tokio::test]
async fn c53_apply_does_not_start_before_every_finalizer_is_on() {
    let both = ours().and(SECOND).unwrap();
    let world = World::with("u1", &[OURS]);
    let check = world.clone();
    both.reconcile(&api(&world), &cached("u1", &[OURS]), async |_| {
        assert_eq!(check.state().finalizers(), [OURS, SECOND]);
        Ok::<_, std::io::Error>(Progress::Done)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn c25_an_object_deleted_while_the_operator_was_down_is_cleaned_up() {
    let world = World::with("u1", &[OURS]);
    world.state().delete();
    // The first attempt crashes in the middle of the cleanup.
    let (finalizer, api, object) = (ours(), api(&world), cached("u1", &[OURS]));
    let hangs = async |_| std::future::pending::<Result<Progress, std::io::Error>>().await;
    let crashed = tokio::time::timeout(Duration::from_millis(50), finalizer.reconcile(&api, &object, hangs)).await;
    assert!(crashed.is_err());
    assert_eq!(world.state().finalizers(), [OURS]);
    assert_eq!(finalizer.reconcile(&api, &object, done).await.unwrap(), Outcome::Released);
    assert!(world.state().object.is_none());
}

#[tokio::test]
async fn a_cleanup_that_is_not_done_keeps_the_finalizer() {
    let world = World::with("u1", &[OURS]);
    world.state().delete();
    let outcome = ours()
        .reconcile(&api(&world), &cached("u1", &[OURS]), async |_| {
            Ok::<_, std::io::Error>(Progress::after(Duration::from_secs(7)))
        })
        .await
        .unwrap();
    let since = "2026-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(outcome, Outcome::Pending { after: Duration::from_secs(7), deleting_since: Some(since) });
    assert_eq!(Action::from(outcome), Action::requeue(Duration::from_secs(7)));
    assert_eq!(Action::from(Outcome::Released), Action::await_change());
    assert_eq!(world.state().finalizers(), [OURS]);
    assert_eq!(world.calls(), ["GET"]);
}

#[tokio::test]
async fn a_cleanup_that_fails_keeps_the_finalizer_and_the_error_may_be_anything() {
    #[derive(Debug)]
    struct NoStdError;
    impl std::fmt::Display for NoStdError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("boom")
        }
    }
    let world = World::with("u1", &[OURS]);
    world.state().delete();
    let error = ours().reconcile(&api(&world), &cached("u1", &[OURS]), async |_| Err(NoStdError)).await.unwrap_err();
    assert!(matches!(error, ReconcileError::Cleanup(NoStdError)));
    let as_std: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert_eq!(as_std.to_string(), "cannot clean up: boom");
    assert_eq!(world.state().finalizers(), [OURS]);
}

#[tokio::test]
async fn another_incarnation_is_left_alone() {
    let world = World::with("u2", &[OURS]);
    world.state().delete();
    let outcome = ours().reconcile(&api(&world), &cached("u1", &[OURS]), never).await.unwrap();
    assert_eq!(outcome, Outcome::Recreated { uid: Uid::new("u2").unwrap() });

    // Recreated, with our finalizer at the same place, while the cleanup of the old one ran.
    let world = World::with("u1", &[OURS]);
    world.state().delete();
    world.interfere(|state, method, calls| {
        if method == "PATCH" && calls == 1 {
            state.create("u2", &[OURS]);
        }
    });
    let outcome = ours().reconcile(&api(&world), &cached("u1", &[OURS]), done).await.unwrap();
    assert_eq!(outcome, Outcome::Recreated { uid: Uid::new("u2").unwrap() });
    assert_eq!(world.state().finalizers(), [OURS]);
}

#[tokio::test]
async fn an_object_that_vanishes_is_an_outcome() {
    let world = World::default();
    assert_eq!(ours().reconcile(&api(&world), &cached("u1", &[]), never).await.unwrap(), Outcome::Gone);
    assert_eq!(ours().ensure(&world.client(), &config_maps(), &target("u1"), &[]).await.unwrap(), Ensured::Gone);
    assert_eq!(ours().release(&world.client(), &config_maps(), &target("u1")).await.unwrap(), Released::Gone);

    let world = World::with("u1", &[OURS]);
    world.state().delete();
    world.interfere(|state, method, _| {
        if method == "PATCH" {
            state.object = None;
        }
    });
    let outcome = ours().reconcile(&api(&world), &cached("u1", &[OURS]), done).await.unwrap();
    assert_eq!(outcome, Outcome::Released, "404 while removing is success");
}

#[tokio::test]
async fn a_path_that_is_not_served_is_not_an_object_that_is_gone() {
    let world = World::with("u1", &[OURS]);
    world.state().refuse_all = Some((404, b"404 page not found\n".to_vec()));
    let error = ours().release(&world.client(), &config_maps(), &target("u1")).await.unwrap_err();
    assert!(matches!(&error, Error::Read { refusal, .. } if *refusal.answer() == Answer::NoRoute), "{error}");
}

#[tokio::test]
async fn c20_a_refusal_by_admission_is_told_from_a_failed_test() {
    let denied = "configmaps \"parent\" is forbidden: ValidatingAdmissionPolicy 'refs' with binding 'refs' denied request: \
                  spec.ref is missing";
    for (status, calls) in [
        (failure(422, "Invalid", denied), &["GET", "PATCH"][..]),
        (failure(403, "Forbidden", "admission webhook \"w.example.com\" denied the request: no"), &["GET", "PATCH"]),
        // A validator that says no more than a failed test would: only the read tells.
        (
            failure(422, "Invalid", "the server rejected our request due to an error in our request"),
            &["GET", "PATCH", "GET"],
        ),
        (failure(422, "Invalid", "spec.size: Required value"), &["GET", "PATCH", "GET"]),
    ] {
        let world = World::with("u1", &[OURS]);
        world.state().delete();
        world.state().refuse_patches = Some(status.clone());
        let error = ours().reconcile(&api(&world), &cached("u1", &[OURS]), done).await.unwrap_err();
        let ReconcileError::Finalizer(Error::Write { refusal, .. }) = &error else { panic!("{error}") };
        assert_eq!(refusal.message(), status["message"].as_str().unwrap());
        assert!(error.to_string().contains(refusal.message()), "{error}");
        assert_eq!(world.calls(), calls);
        assert_eq!(world.state().finalizers(), [OURS]);
    }
}

#[tokio::test]
async fn an_object_that_never_rests_is_given_up_by_name() {
    let world = World::with("u1", &[A]);
    world.interfere(|state, method, calls| {
        if method == "PATCH" {
            let name = format!("busy.example.com/{calls}");
            state.edit(|meta| meta.finalizers = Some(vec![name]));
        }
    });
    let error = ours().ensure(&world.client(), &config_maps(), &target("u1"), &[]).await.unwrap_err();
    assert!(matches!(error, Error::Contended { attempts: 10, .. }), "{error}");
    assert!(error.to_string().contains("ConfigMap n/parent"), "{error}");
}

#[tokio::test]
async fn an_annotation_grows_in_the_patch_that_adds_the_finalizer() {
    const KEY: &str = "ours.example.com/group-kinds";
    let grow = AnnotationUpdate::new(KEY, |old: Option<&str>| match old {
        Some(old) if old.contains("Secret") => None,
        Some(old) => Some(format!("{old},Secret")),
        None => Some("Secret".into()),
    });
    let second = Finalizer::new(SECOND).unwrap();
    let world = World::with("u1", &[OURS]);
    world.interfere(|state, method, calls| {
        if method == "PATCH" && calls == 1 {
            state.edit(|meta| _ = meta.annotations.get_or_insert_default().insert(KEY.into(), "ConfigMap".into()));
        }
    });
    let ensured =
        second.ensure(&world.client(), &config_maps(), &target("u1"), std::slice::from_ref(&grow)).await.unwrap();
    let Ensured::Held(meta) = ensured else { panic!("{ensured:?}") };
    assert_eq!(meta.annotations.unwrap()[KEY], "ConfigMap,Secret");
    let paths: Vec<_> =
        world.state().bodies.iter().map(|(b, _)| b[b.as_array().unwrap().len() - 1]["path"].clone()).collect();
    assert_eq!(paths, ["/metadata/annotations", "/metadata/annotations/ours.example.com~1group-kinds"]);

    // On an object that is being deleted not even the annotation is written, though the server would accept it.
    world.state().delete();
    let more = AnnotationUpdate::new(KEY, |_: Option<&str>| Some("Everything".into()));
    let ensured = second.ensure(&world.client(), &config_maps(), &target("u1"), &[more]).await.unwrap();
    assert!(matches!(ensured, Ensured::Deleting(_)));
    assert_eq!(world.state().annotation(KEY).as_deref(), Some("ConfigMap,Secret"));
}

#[tokio::test]
async fn the_door_is_closed_for_annotations_too() {
    let world = World::with("u1", &[OURS]);
    world.interfere(|state, method, _| {
        if method == "PATCH" {
            state.delete();
        }
    });
    let update = AnnotationUpdate::new("ours.example.com/k", |_: Option<&str>| Some("v".into()));
    let ensured = ours().ensure(&world.client(), &config_maps(), &target("u1"), &[update]).await.unwrap();
    assert!(matches!(ensured, Ensured::Deleting(_)));
    assert_eq!(world.state().annotation("ours.example.com/k"), None);
}

#[tokio::test]
async fn an_object_that_was_not_read_from_a_server_is_refused_before_anything_is_sent() {
    let world = World::default();
    let error = ours().reconcile(&api(&world), &ConfigMap::default(), never).await.unwrap_err();
    assert!(matches!(error, ReconcileError::Finalizer(Error::NotLive { id: None, .. })));
    let mut no_uid = cached("u1", &[]);
    no_uid.metadata.uid = None;
    let error = ours().reconcile(&api(&world), &no_uid, never).await.unwrap_err();
    assert!(error.to_string().contains("ConfigMap n/parent"), "{error}");
    assert!(world.calls().is_empty());
}

#[tokio::test]
async fn dynamic_kinds_reconcile_as_well() {
    let world = World::with("u1", &[]);
    let kind = config_maps().api_resource();
    let api = Api::<DynamicObject>::namespaced_with(world.client(), "n", &kind);
    let mut object = DynamicObject::new("parent", &kind).within("n");
    object.metadata.uid = Some("u1".into());
    let outcome =
        ours().reconcile_with(&api, &object, &kind, async |_| Ok::<_, std::io::Error>(Progress::Done)).await.unwrap();
    assert_eq!(outcome, Outcome::Applied);
}

#[test]
fn plans_leave_alone_what_is_in_order() {
    let uid = Uid::new("u1").unwrap();
    let meta = cached("u1", &[OURS, A]).metadata;
    assert_eq!(ours().plan_add(&meta, &uid, &[]), Plan::Nothing);
    assert_eq!(ours().plan_remove(&cached("u1", &[A]).metadata, &uid), Plan::Nothing);
    let Plan::Patch(patch) = ours().plan_remove(&meta, &uid) else { panic!("ours is on it") };
    assert_eq!(
        serde_json::to_value(patch).unwrap(),
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u1"},
            {"op": "test", "path": "/metadata/finalizers", "value": [OURS, A]},
            {"op": "replace", "path": "/metadata/finalizers", "value": [A]},
        ])
    );
}

#[test]
fn field_managers_fit() {
    let long = format!("{}.example.com/x", vec!["a"; 100].join("."));
    assert_eq!(Finalizer::new(&long).unwrap().field_manager.len(), 128);
    let domain = format!("{}.example.com", ["a"; 58].join("."));
    assert_eq!(domain.len(), 127);
    let manager = Finalizer::new(format!("{domain}/x")).unwrap().field_manager;
    assert!(manager.ends_with("example.com/x"), "not the domain, which objects are applied under: {manager}");
    assert_eq!(ours().field_manager("ä".repeat(100)).field_manager.chars().count(), 64);
    assert_eq!(ours().field_manager("short").field_manager, "short");
}

/// The closure form must run inside `Controller::run` and `tokio::spawn`, which want `Send + 'static` futures.
#[test]
fn the_closure_form_is_send() {
    struct Context {
        finalizer: Finalizer,
        api: Api<ConfigMap>,
        greeting: String,
    }

    async fn reconcile(
        object: Arc<ConfigMap>,
        context: Arc<Context>,
    ) -> Result<Action, ReconcileError<std::io::Error>> {
        let outcome = context
            .finalizer
            .reconcile(&context.api, &object, async |event| {
                tokio::task::yield_now().await;
                match event {
                    Event::Apply(object) if object.metadata.name.as_ref() == Some(&context.greeting) => {
                        Ok(Progress::Done)
                    }
                    Event::Apply(_) | Event::Cleanup(_) => Ok(Progress::after(Duration::from_secs(1))),
                }
            })
            .await?;
        Ok(outcome.into())
    }

    fn sent<F: Future + Send + 'static>(_: impl Fn(Arc<ConfigMap>, Arc<Context>) -> F) {}
    sent(reconcile);
}
