//! What others do to a parent's objects, and to the record of them, while they are applied and torn down.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use control_plane::{
    Part, Plane,
    audit::{CallHead, Fault, Gate, Refusal, Verb},
    fixtures,
};
use kube::{Client, ResourceExt, api::DynamicObject};
use kube_custody::{
    custodian::{Adoption, Error, Outcome, Phase, Problem, Watch},
    inventory::{Entry, EntryState, Origin},
    object::{ParentRef, ResourceKind, Scope, Uid},
    ownership::HandOver,
    teardown::{Blocker, Proof, Reason},
};
use serde_json::{Value, json};

use crate::world::*;

fn label() -> String {
    format!("{MANAGER}/parent-uid")
}

fn back_pointer() -> String {
    format!("{MANAGER}/back-pointer")
}

fn uid_of(object: &DynamicObject) -> Uid {
    Uid::new(object.metadata.uid.as_deref().unwrap()).unwrap()
}

/// The object as somebody who dumped it would create it again.
fn dumped(live: &DynamicObject) -> DynamicObject {
    let mut copy = live.clone();
    copy.metadata.uid = None;
    copy.metadata.resource_version = None;
    copy.metadata.creation_timestamp = None;
    copy.metadata.managed_fields = None;
    copy.metadata.owner_references = None;
    copy.metadata.finalizers = None;
    copy
}

/// Takes an object away and creates `with` in its place.
async fn replace(client: &Client, with: &DynamicObject) -> DynamicObject {
    remove(client, with).await;
    create(client, with).await
}

const HOLD: &str = "x.example.com/hold";

async fn hold(client: &Client, object: &DynamicObject) {
    patch(client, object, json!({"metadata": {"finalizers": [HOLD]}})).await;
}

async fn release(client: &Client, object: &DynamicObject) {
    patch(client, object, json!({"metadata": {"finalizers": null}})).await;
}

/// The object is somebody else's, as they left it.
async fn assert_untouched(client: &Client, before: &DynamicObject) {
    let now = live(client, before).await.unwrap_or_else(|| panic!("{} is gone", before.name_any()));
    assert_eq!(now.metadata.resource_version, before.metadata.resource_version, "{now:#?}");
    assert_eq!(now.metadata.uid, before.metadata.uid);
}

/// The object is as they left it, but for the reference to our proxy, which would have taken it along.
async fn assert_left(client: &Client, before: &DynamicObject) {
    let now = live(client, before).await.unwrap_or_else(|| panic!("{} is gone", before.name_any()));
    let clean = |object: &DynamicObject| {
        let mut object = object.clone();
        object.metadata.resource_version = None;
        object.metadata.managed_fields = None;
        object.metadata.owner_references = None;
        object
    };
    assert_eq!(clean(&now), clean(before));
    assert!(now.metadata.owner_references.is_none(), "{now:#?}");
}

// ---- between our write-ahead and our POST ----------------------------------

#[tokio::test]
async fn c30_an_object_created_by_somebody_else_right_before_our_post_is_theirs() {
    let scene = Scene::new("preempted").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    let theirs = scene.map("x", &[]);
    let times = scene.before(
        |call| call.verb == Verb::Create && call.name() == Some("x"),
        move |admin| {
            let theirs = theirs.clone();
            async move { drop(create(&admin, &theirs).await) }
        },
    );
    let outcome = scene.until("the foreign object is reported", &set, |o| problem(o, "x").is_some()).await;
    assert_eq!(times.load(Ordering::SeqCst), 1);
    scene.log.heal();
    assert!(matches!(problem(&outcome, "x"), Some(Problem::Exists { .. })), "{outcome:#?}");
    assert_eq!(outcome.phase, Phase::Progressing);
    let before = live(&scene.admin, &set[0]).await.unwrap();
    assert_eq!(scene.recorded().await, ["y"], "our POST was answered, so nothing of ours can exist");
    for _ in 0..2 {
        scene.pass(&set).await;
    }
    scene.tear_down().await;
    assert_untouched(&scene.admin, &before).await;
    assert!(scene.attempted().iter().all(|name| name != "x"));
    assert!(!exists(&scene.admin, &set[1]).await);
}

#[tokio::test]
async fn an_intended_entry_stays_while_something_of_ours_may_exist_and_is_never_deleted_unproven() {
    let scene = Scene::new("unproven").await;
    let set = [scene.map("base", &[]), scene.map("x", &["base"])];
    let theirs = set[1].clone();
    scene.before(
        |call| call.verb == Verb::Create && call.name() == Some("x"),
        move |admin| {
            let theirs = theirs.clone();
            async move {
                if !exists(&admin, &theirs).await {
                    create(&admin, &theirs).await;
                }
            }
        },
    );
    // The answer to our POST is lost, so this pass does not learn that the POST failed.
    scene.log.once(|call| call.verb == Verb::Create && call.name() == Some("x"), Fault::LoseAnswer);
    scene.until("the answer is lost", &set, |o| matches!(problem(o, "x"), Some(Problem::Refused { .. }))).await;
    let outcome = scene.pass(&set).await;
    assert!(matches!(problem(&outcome, "x"), Some(Problem::Exists { .. })), "{outcome:#?}");
    assert_eq!(scene.recorded().await, ["base", "x"]);
    scene.log.heal();
    let before = live(&scene.admin, &set[1]).await.unwrap();

    scene.delete().await;
    let outcome = scene.until("x holds the parent", &[], |o| blocker(o, "x").is_some()).await;
    assert_eq!(blocker(&outcome, "x").unwrap().reason, Reason::Unproven);
    scene.custodian.abandon(&scene.track, &scene.id("x")).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_untouched(&scene.admin, &before).await;
    assert!(scene.attempted().iter().all(|name| name != "x"));
    assert!(exists(&scene.admin, &set[0]).await, "what it needs is left to it");
}

// ---- other incarnations ------------------------------------------------------

#[tokio::test]
async fn an_object_recreated_without_our_marks_is_not_ours_any_more() {
    let scene = Scene::new("recreated-bare").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    scene.apply(&set).await;
    let theirs = replace(&scene.admin, &set[0]).await;
    let outcome = scene.until("it is reported", &set, |o| problem(o, "x").is_some()).await;
    assert!(matches!(problem(&outcome, "x"), Some(Problem::Exists { .. })), "{outcome:#?}");
    scene.log.clear();
    let outcome = scene.tear_down().await;
    let proof = outcome.removal.gone.iter().find(|(id, _)| *id == scene.id("x")).map(|(_, proof)| proof.clone());
    assert_eq!(proof, Some(Proof::Replaced { by: uid_of(&theirs) }));
    assert_untouched(&scene.admin, &theirs).await;
    assert!(scene.attempted().iter().all(|name| name != "x"));
}

#[tokio::test]
async fn an_object_recreated_with_our_marks_is_ours_again() {
    let scene = Scene::new("recreated-marked").await;
    let set = [scene.map("x", &[])];
    scene.apply(&set).await;
    let copy = dumped(&live(&scene.admin, &set[0]).await.unwrap());
    let again = replace(&scene.admin, &copy).await;
    scene.until("the new incarnation is applied", &set, |o| o.applied.iter().any(|l| l.uid == uid_of(&again))).await;
    assert_eq!(scene.inventory().await.get(&scene.id("x")).unwrap().uid, Some(uid_of(&again)));
    scene.tear_down().await;
    assert!(!exists(&scene.admin, &set[0]).await);
}

#[tokio::test]
async fn from_the_third_recreation_on_an_object_is_held_across_restarts_until_it_is_abandoned() {
    let mut scene = Scene::new("recreated-often").await;
    let set = [scene.map("base", &[]), scene.map("x", &["base"])];
    scene.apply(&set).await;
    let copy = dumped(&live(&scene.admin, &set[1]).await.unwrap());
    let times = scene.before(
        |call| call.verb == Verb::Delete && call.name() == Some("x"),
        move |admin| {
            let copy = copy.clone();
            async move { drop(replace(&admin, &copy).await) }
        },
    );
    scene.delete().await;
    // A restart after every pass: how often it came back is on record.
    let mut passes = 0;
    let outcome = loop {
        let outcome = scene.pass(&[]).await;
        passes += 1;
        if blocker(&outcome, "x").is_some_and(|b| b.reason == Reason::Recreated { times: 3 }) {
            break outcome;
        }
        assert!(passes < 20, "{outcome:#?}");
        scene.restart(|b| b);
    };
    assert_eq!(outcome.phase, Phase::Deleting);
    assert_eq!(times.load(Ordering::SeqCst), 3, "three DELETEs met another incarnation, and no fourth was sent");
    scene.log.heal();
    scene.restart(|b| b);
    scene.log.clear();
    let outcome = scene.pass(&[]).await;
    assert_eq!(blocker(&outcome, "x").unwrap().reason, Reason::Recreated { times: 3 }, "{outcome:#?}");
    assert!(scene.attempted().is_empty());
    scene.custodian.abandon(&scene.track, &scene.id("x")).await.unwrap();
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Released);
    assert_eq!(scene.present(&set).await, [true, true], "what it needs is left to it: {outcome:#?}");
}

#[tokio::test]
async fn an_incarnation_with_our_marks_that_comes_after_the_delete_is_not_orphaned() {
    let scene = Scene::new("recreated-after").await;
    let set = [scene.map("base", &[]), scene.map("x", &["base"])];
    scene.apply(&set).await;
    let copy = dumped(&live(&scene.admin, &set[1]).await.unwrap());
    // Comes back right after it was deleted, before anything else is.
    scene.before(
        |call| call.verb == Verb::Delete && call.name() == Some("base"),
        move |admin| {
            let copy = copy.clone();
            async move {
                create(&admin, &copy).await;
                // Long enough for the watch to tell.
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            }
        },
    );
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false, false]);
}

// ---- marks -----------------------------------------------------------------------

#[tokio::test]
async fn a_stripped_label_is_put_back_and_hides_nothing() {
    let scene = Scene::new("label").await;
    let set = [scene.map("base", &[]), scene.map("x", &["base"]), scene.map("held", &["base"])];
    scene.apply(&set).await;
    let strip = json!({"metadata": {"labels": {label(): null}}});
    patch(&scene.admin, &set[1], strip.clone()).await;
    scene.until("the label is back", &set, |o| o.phase == Phase::Applied).await;
    fixtures::eventually("the label is back", async || {
        scene.pass(&set).await;
        live(&scene.admin, &set[1]).await?.labels().contains_key(&label()).then_some(())
    })
    .await;
    // Stripped while it is terminating: the watch says DELETED, and it is not gone.
    hold(&scene.admin, &set[2]).await;
    patch(&scene.admin, &set[1], strip.clone()).await;
    scene.delete().await;
    scene.until("it is waited for", &[], |o| blocker(o, "held").is_some_and(|b| b.reason == Reason::Terminating)).await;
    patch(&scene.admin, &set[2], strip).await;
    for _ in 0..3 {
        let outcome = scene.pass(&[]).await;
        assert!(blocker(&outcome, "held").is_some(), "{outcome:#?}");
        assert!(exists(&scene.admin, &set[0]).await, "what it depends on stays");
    }
    release(&scene.admin, &set[2]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_eq!(scene.present(&set).await, [false; 3]);
}

#[tokio::test]
async fn an_object_whose_back_pointer_was_taken_off_is_disowned_and_never_deleted() {
    let scene = Scene::new("disowned").await;
    let set = [scene.map("base", &[]), scene.map("x", &["base"]), scene.map("y", &[])];
    scene.apply(&set).await;
    let stripped = patch(&scene.admin, &set[1], json!({"metadata": {"annotations": {back_pointer(): null}}})).await;
    let outcome = scene.until("it is named", &set, |o| problem(o, "x").is_some()).await;
    assert_eq!(problem(&outcome, "x"), Some(&Problem::Disowned));
    // Dropped: neither it nor what it needs is pruned.
    let outcome = scene.until("it is named", &set[2..], |o| blocker(o, "x").is_some()).await;
    assert_eq!(blocker(&outcome, "x").unwrap().reason, Reason::Disowned);
    scene.delete().await;
    let outcome =
        scene.until("the parent is held", &[], |o| blocker(o, "x").is_some() && blocker(o, "y").is_none()).await;
    assert_eq!(blocker(&outcome, "x").unwrap().reason, Reason::Disowned);
    assert!(blocker(&outcome, "x").unwrap().since.is_some());
    assert_eq!(scene.present(&set).await, [true, true, false]);
    scene.custodian.abandon(&scene.track, &scene.id("x")).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_left(&scene.admin, &stripped).await;
    assert_eq!(scene.present(&set).await, [true, true, false], "what it needs is left to it");
    assert!(scene.attempted().iter().all(|name| name != "x"));
}

#[tokio::test]
async fn an_abandoned_object_that_is_still_desired_is_judged_like_any_foreign_one() {
    let scene = Scene::new("abandoned").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    scene.apply(&set).await;
    let stripped = patch(&scene.admin, &set[0], json!({"metadata": {"annotations": {back_pointer(): null}}})).await;
    scene.until("it is disowned", &set, |o| problem(o, "x") == Some(&Problem::Disowned)).await;
    scene.custodian.abandon(&scene.track, &scene.id("x")).await.unwrap();
    let outcome = scene.pass(&set).await;
    assert!(matches!(problem(&outcome, "x"), Some(Problem::Exists { .. })), "{outcome:#?}");
    // The decision holds: the teardown asks for no second one.
    scene.tear_down().await;
    assert_left(&scene.admin, &stripped).await;
}

#[tokio::test]
async fn c31_a_foreign_object_with_copied_marks_is_neither_touched_nor_waited_for() {
    let scene = Scene::new("copied").await;
    let set = [scene.map("x", &[])];
    scene.apply(&set).await;
    let mut copy = dumped(&live(&scene.admin, &set[0]).await.unwrap());
    copy.metadata.name = Some("copy".into());
    copy.metadata.finalizers = Some(vec![HOLD.into()]);
    let copy = create(&scene.admin, &copy).await;
    scene.apply(&set).await;
    let outcome = scene.tear_down().await;
    assert!(blocker(&outcome, "copy").is_none());
    assert_untouched(&scene.admin, &copy).await;
    assert!(scene.writes_to("copy").is_empty());
    release(&scene.admin, &copy).await;
}

#[tokio::test]
async fn c31_a_desired_object_whose_name_is_taken_by_a_copy_is_left_alone() {
    let scene = Scene::new("copied-name").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    scene.apply(&set[..1]).await;
    let mut copy = dumped(&live(&scene.admin, &set[0]).await.unwrap());
    copy.metadata.name = Some("y".into());
    let copy = create(&scene.admin, &copy).await;
    let outcome = scene.until("it is reported", &set, |o| problem(o, "y").is_some()).await;
    assert!(
        matches!(problem(&outcome, "y"), Some(Problem::Exists { owner }) if owner.contains("copy")),
        "{outcome:#?}"
    );
    scene.tear_down().await;
    assert_untouched(&scene.admin, &copy).await;
}

#[tokio::test]
async fn c29_an_object_of_another_parent_of_the_same_manager_stays_theirs() {
    for between in [HandOver::Never, HandOver::SameNamespace] {
        let scene = Scene::with("c29", |b| b.hand_over(between)).await;
        let other = parent(&scene.admin, &scene.ns, "other").await;
        let shared = namespace(&fixtures::ns("c29-shared"));
        let inside = config_map(&shared.name_any(), "theirs", &[]);
        let first = [shared.clone(), inside.clone()];
        settle(&scene.custodian, &scene.admin, &other, &first).await;
        let before = live(&scene.admin, &shared).await.unwrap();
        let mine = config_map(&shared.name_any(), "mine", &[]);
        let set = [shared.clone(), mine.clone()];
        let outcome = scene.until("it is reported", &set, |o| problem(o, &shared.name_any()).is_some()).await;
        let problem = problem(&outcome, &shared.name_any());
        assert!(matches!(problem, Some(Problem::Exists { owner }) if owner.contains("/other")), "{outcome:#?}");
        scene.tear_down().await;
        if between == HandOver::Never {
            assert_untouched(&scene.admin, &before).await;
        }
        // Who asked for it leaves nothing behind.
        let now = live(&scene.admin, &shared).await.unwrap();
        assert_eq!(now.metadata.uid, before.metadata.uid);
        assert_eq!((now.labels(), now.annotations()), (before.labels(), before.annotations()));
        assert!(exists(&scene.admin, &inside).await);
        delete(&scene.admin, &other).await;
        assert_eq!(settle(&scene.custodian, &scene.admin, &other, &[]).await.phase, Phase::Released);
    }
}

#[tokio::test]
async fn an_object_that_is_handed_to_another_parent_is_not_taken_back_nor_deleted() {
    let scene = Scene::new("handed-over").await;
    let other = parent(&scene.admin, &scene.ns, "other").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    scene.apply(&set).await;
    // As the other parent would mark it.
    let like = scene.map("z", &[]);
    settle(&scene.custodian, &scene.admin, &other, std::slice::from_ref(&like)).await;
    let marks = live(&scene.admin, &like).await.unwrap();
    let pointer = marks.annotations()[&back_pointer()].replace("/z\"", "/x\"").replace("\"z\"", "\"x\"");
    let handed = json!({"metadata": {
        "labels": {label(): other.uid()}, "annotations": {back_pointer(): pointer}, "ownerReferences": null,
    }});
    patch(&scene.admin, &set[0], handed).await;
    let outcome = settle(&scene.custodian, &scene.admin, &other, &[like.clone(), set[0].clone()]).await;
    assert_eq!(outcome.phase, Phase::Applied, "the new parent sees it as its own: {outcome:#?}");
    let before = live(&scene.admin, &set[0]).await.unwrap();
    let outcome = scene.until("the old parent sees it", &set, |o| problem(o, "x").is_some()).await;
    assert_eq!(problem(&outcome, "x"), Some(&Problem::Disowned), "{outcome:#?}");
    scene.until("dropped", &set[1..], |o| blocker(o, "x").is_some()).await;
    scene.delete().await;
    let outcome = scene.until("held", &[], |o| blocker(o, "x").is_some() && blocker(o, "y").is_none()).await;
    let held = blocker(&outcome, "x").unwrap();
    assert_eq!(held.reason, Reason::Disowned);
    assert!(held.words.contains("/other"), "{held}");
    scene.custodian.abandon(&scene.track, &scene.id("x")).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_untouched(&scene.admin, &before).await;
    delete(&scene.admin, &other).await;
    assert_eq!(settle(&scene.custodian, &scene.admin, &other, &[]).await.phase, Phase::Released);
    assert!(!exists(&scene.admin, &set[0]).await);
}

#[tokio::test]
async fn an_object_handed_over_between_our_look_and_our_apply_is_not_taken_back() {
    let scene = Scene::new("handed-race").await;
    let set = [scene.map("x", &[])];
    scene.apply(&set).await;
    let x = set[0].clone();
    scene.before(
        |call| call.is_apply() && call.name() == Some("x"),
        move |admin| {
            let x = x.clone();
            async move { drop(patch(&admin, &x, json!({"metadata": {"annotations": {back_pointer(): "taken"}}})).await) }
        },
    );
    let mut changed = set[0].clone();
    changed.data["data"]["a"] = json!("2");
    let outcome = scene.until("it is seen", &[changed], |o| problem(o, "x").is_some()).await;
    assert_eq!(problem(&outcome, "x"), Some(&Problem::Disowned), "{outcome:#?}");
    let live = live(&scene.admin, &set[0]).await.unwrap();
    assert_eq!((live.annotations()[&back_pointer()].as_str(), &live.data["data"]["a"]), ("taken", &json!("1")));
}

// ---- finalizers ---------------------------------------------------------------

#[tokio::test]
async fn a_foreign_finalizer_is_reported_with_name_and_time_and_never_taken_off() {
    let scene = Scene::new("finalizer").await;
    let mut kept = scene.map("kept", &[]);
    kept.metadata.annotations = Some([("helm.sh/resource-policy".to_owned(), "keep".to_owned())].into());
    let set = [scene.map("base", &[]), scene.map("held", &["base"]), kept, scene.map("free", &[])];
    scene.apply(&set).await;
    hold(&scene.admin, &set[1]).await;
    hold(&scene.admin, &set[2]).await;
    scene.delete().await;
    let settled = |o: &Outcome| blocker(o, "held").is_some() && blocker(o, "free").is_none();
    let outcome = scene.until("it is reported", &[], settled).await;
    let held = blocker(&outcome, "held").unwrap();
    assert_eq!((&held.reason, held.finalizers.as_slice()), (&Reason::Terminating, [HOLD.to_owned()].as_slice()));
    let terminating = live(&scene.admin, &set[1]).await.unwrap().metadata.deletion_timestamp;
    assert_eq!(held.since, terminating, "since the API server accepted the DELETE");
    assert_eq!(blocker(&outcome, "base").unwrap().dependents, [scene.id("held")]);
    assert_eq!(scene.present(&set).await, [true, true, true, false]);
    release(&scene.admin, &set[1]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_eq!(scene.present(&set).await, [false, false, true, false]);
    assert_eq!(live(&scene.admin, &set[2]).await.unwrap().finalizers(), [HOLD]);
    release(&scene.admin, &set[2]).await;
}

// ---- other writers of the record ---------------------------------------------

#[tokio::test]
async fn an_entry_that_another_writer_removed_is_found_again() {
    let scene = Scene::new("entry-removed").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    scene.apply(&set).await;
    scene.meddle(|inventory| drop(inventory.remove(&scene.id("x")))).await;
    scene.apply(&set).await;
    assert_eq!(scene.recorded().await, ["x", "y"]);
    assert_eq!(scene.log.calls_where(|c| c.effective && c.verb == Verb::Create && c.name() == Some("x")).len(), 1);
    // Removed when nobody will desire it again.
    scene.meddle(|inventory| drop(inventory.remove(&scene.id("x")))).await;
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false, false], "the watch shows it with our marks");
}

#[tokio::test]
async fn a_foreign_object_that_another_writer_put_on_record_is_never_deleted() {
    let scene = Scene::new("entry-added").await;
    let set = [scene.map("x", &[])];
    scene.apply(&set).await;
    let foreign = create(&scene.admin, &scene.map("foreign", &[])).await;
    let resource = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    scene
        .meddle(|inventory| {
            let mut entry = Entry::intended(scene.id("foreign"), &resource);
            entry.uid = Some(uid_of(&foreign));
            entry.state = EntryState::Recorded;
            inventory.insert(entry);
        })
        .await;
    let outcome = scene.until("it is named", &set, |o| blocker(o, "foreign").is_some()).await;
    assert_eq!(blocker(&outcome, "foreign").unwrap().reason, Reason::Disowned);
    scene.delete().await;
    let outcome = scene.until("it holds", &[], |o| blocker(o, "foreign").is_some() && blocker(o, "x").is_none()).await;
    assert_eq!(blocker(&outcome, "foreign").unwrap().reason, Reason::Disowned);
    scene.custodian.abandon(&scene.track, &scene.id("foreign")).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_untouched(&scene.admin, &foreign).await;
    assert!(scene.writes_to("foreign").is_empty());
}

#[tokio::test]
async fn edited_uids_on_record_lead_to_no_wrong_delete_and_no_orphan() {
    let scene = Scene::new("entry-edited").await;
    let set = [scene.map("x", &[]), scene.map("y", &[])];
    scene.apply(&set).await;
    let foreign = create(&scene.admin, &scene.map("foreign", &[])).await;
    scene
        .meddle(|inventory| {
            inventory.get_mut(&scene.id("x")).unwrap().uid = Some(uid_of(&foreign));
            inventory.get_mut(&scene.id("y")).unwrap().uid = None;
        })
        .await;
    scene.log.clear();
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false, false]);
    assert_untouched(&scene.admin, &foreign).await;
    let deletes = scene.log.calls_where(|c| c.verb == Verb::Delete);
    assert!(deletes.iter().all(|c| c.uid_precondition() != foreign.metadata.uid.as_deref()));
}

// ---- namespaces, kinds and versions --------------------------------------------

#[tokio::test]
async fn a_childs_namespace_that_is_deleted_holds_up_nothing_else() {
    let scene = Scene::new("ns-gone").await;
    let other = new_namespace(&scene.admin, "ns-gone-other").await;
    let set = [scene.map("here", &[]), config_map(&other, "held", &[]), config_map(&other, "late", &[])];
    scene.apply(&set[..2]).await;
    hold(&scene.admin, &set[1]).await;
    remove(&scene.admin, &namespace(&other)).await;
    let outcome = scene.until("the refusal is reported", &set, |o| problem(o, "late").is_some()).await;
    assert_eq!(problem(&outcome, "late"), Some(&Problem::NamespaceTerminating), "{outcome:#?}");
    assert!(exists(&scene.admin, &set[0]).await);
    scene.delete().await;
    let outcome = scene
        .until("only the held one is left", &[], |o| blocker(o, "held").is_some() && blocker(o, "here").is_none())
        .await;
    assert_eq!(outcome.phase, Phase::Deleting);
    release(&scene.admin, &set[1]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    fixtures::gone(api_of(&scene.admin, &namespace(&other)), &other).await;
}

#[tokio::test]
async fn a_version_that_is_switched_off_hides_no_object() {
    let scene = Scene::new("version-off").await;
    let crd = definition(&scene.ns, &[("v2", true), ("v1", true)]);
    fixtures::apply_crd(&scene.admin, &serde_json::from_value(serde_json::to_value(&crd).unwrap()).unwrap()).await;
    let old = custom(&scene.ns, "v1", "x");
    let new = custom(&scene.ns, "v2", "x");
    let set = [old.clone(), scene.map("y", &[])];
    scene.apply(&set).await;
    let versions = definition(&scene.ns, &[("v2", true), ("v1", false)]).data["spec"]["versions"].clone();
    patch(&scene.admin, &crd, json!({"spec": {"versions": versions}})).await;
    fixtures::eventually("v1 answers with a plain 404", async || {
        let read = api_of(&scene.admin, &old).get_opt("x").await;
        // kube reads a plain 404 as a Status of its own making.
        (read.is_err() || read.is_ok_and(|o| o.is_none())).then_some(())
    })
    .await;
    // Discovery is asked again once something is to be written.
    let mut changed = set.clone();
    changed[0].data["spec"]["a"] = json!(2);
    let named = |o: &Outcome| matches!(o.error, Some(Error::UnservedVersion { .. }));
    let outcome = scene.until("the version is named", &changed, named).await;
    assert!(outcome.error.unwrap().to_string().contains("v2"));
    scene.log.clear();
    scene.tear_down().await;
    assert!(!exists(&scene.admin, &new).await, "{}", scene.log);
    remove(&scene.admin, &crd).await;
}

#[tokio::test]
async fn a_version_that_is_switched_off_right_before_the_delete_hides_no_object() {
    let scene = Scene::with("version-race", |b| b.watch(Watch::Off)).await;
    let crd = definition(&scene.ns, &[("v2", true), ("v1", true)]);
    fixtures::apply_crd(&scene.admin, &serde_json::from_value(serde_json::to_value(&crd).unwrap()).unwrap()).await;
    let (old, new) = (custom(&scene.ns, "v1", "x"), custom(&scene.ns, "v2", "x"));
    scene.apply(std::slice::from_ref(&old)).await;
    scene.delete().await;
    // The API server says of v1 what it says once v1 is off; discovery of this custodian says otherwise.
    scene.log.once(
        |call| call.target.plural == "widgets" && call.target.version == "v1" && call.verb == Verb::Get,
        Fault::Fail(Refusal::text(404, "404 page not found\n")),
    );
    scene.log.once(
        |call| call.target.plural == "widgets" && call.verb == Verb::Delete,
        Fault::Fail(Refusal::text(404, "404 page not found\n")),
    );
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert!(!exists(&scene.admin, &new).await);
    remove(&scene.admin, &crd).await;
}

#[tokio::test]
async fn a_definition_in_the_set_goes_after_its_resources_and_comes_back_when_others_delete_it() {
    let scene = Scene::new("crd").await;
    let crd = definition(&scene.ns, &[("v1", true)]);
    let set = [crd.clone(), custom(&scene.ns, "v1", "x"), custom(&scene.ns, "v1", "y")];
    scene.apply(&set).await;
    let before = live(&scene.admin, &crd).await.unwrap();
    // Somebody deletes the definition, and with it its resources.
    remove(&scene.admin, &crd).await;
    fixtures::eventually("it is gone", async || {
        let now = live(&scene.admin, &crd).await;
        now.is_none_or(|now| now.metadata.uid != before.metadata.uid).then_some(())
    })
    .await;
    scene.apply(&set).await;
    assert_eq!(scene.present(&set).await, [true; 3]);
    hold(&scene.admin, &set[1]).await;
    scene.log.clear();
    scene.delete().await;
    let outcome = scene.until("one holds", &[], |o| blocker(o, "x").is_some() && blocker(o, "y").is_none()).await;
    assert!(blocker(&outcome, &crd.name_any()).is_some_and(|b| b.reason == Reason::Dependents), "{outcome:#?}");
    release(&scene.admin, &set[1]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_before(&scene.deleted(), "x", &crd.name_any());
    assert!(!exists(&scene.admin, &crd).await);
}

#[tokio::test]
async fn c40_one_blocked_child_stops_no_other() {
    let scene = Scene::new("c40").await;
    let crd = definition(&scene.ns, &[("v1", true)]);
    fixtures::apply_crd(&scene.admin, &serde_json::from_value(serde_json::to_value(&crd).unwrap()).unwrap()).await;
    let key = format!("{}.example.com/protected", scene.ns);
    fixtures::deny_delete_policy(&scene.admin, &scene.ns, &key).await;
    let mut denied = scene.map("denied", &[]);
    denied.metadata.annotations = Some([(key.clone(), String::new())].into());
    let names = ["ok", "held", "forbidden", "absent"];
    let mut set: Vec<_> = names.iter().map(|n| scene.map(n, &[])).collect();
    set.extend([denied, custom(&scene.ns, "v1", "kindless")]);
    scene.apply(&set).await;
    hold(&scene.admin, &set[1]).await;
    scene.log.on_call(|call| match (call.verb, call.name()) {
        (Verb::Delete, Some("forbidden")) => Fault::Fail(Refusal::status(
            403,
            "Forbidden",
            "configmaps \"forbidden\" is forbidden: User \"op\" cannot delete resource \"configmaps\" in API group \"\"",
        )),
        _ => Fault::Pass,
    });
    remove(&scene.admin, &set[3]).await;
    remove(&scene.admin, &crd).await;
    fixtures::gone(api_of(&scene.admin, &crd), &crd.name_any()).await;
    scene.delete().await;
    let known = |b: &&Blocker| b.reason != Reason::Unknown;
    let done = |o: &Outcome| o.removal.blockers.len() == 3 && o.removal.blockers.iter().filter(known).count() == 3;
    let outcome = scene.until("three are blocked", &[], done).await;
    let reasons: Vec<_> = outcome.removal.blockers.iter().map(|b| (b.id.name(), b.reason.clone())).collect();
    let expected = [("denied", Reason::Refused), ("forbidden", Reason::Forbidden), ("held", Reason::Terminating)];
    assert_eq!(reasons, expected, "{outcome:#?}");
    assert_eq!(scene.present(&set[..5]).await, [false, true, true, false, true]);
    scene.log.heal();
    release(&scene.admin, &set[1]).await;
    fixtures::remove_deny_delete_policy(&scene.admin, &scene.ns, &key).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

// ---- watches and servers --------------------------------------------------------

#[tokio::test]
async fn closed_watches_are_opened_again() {
    let scene = Scene::new("watch-closed").await;
    let set = [scene.map("base", &[]), scene.map("held", &["base"])];
    scene.apply(&set).await;
    hold(&scene.admin, &set[1]).await;
    scene.delete().await;
    scene.until("it is waited for", &[], |o| blocker(o, "held").is_some()).await;
    for _ in 0..3 {
        scene.log.close_watches();
    }
    release(&scene.admin, &set[1]).await;
    scene.log.close_watches();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

#[tokio::test]
async fn a_watch_that_says_nothing_delays_and_does_not_stop_a_teardown() {
    let scene = Scene::new("watch-mute").await;
    let gate = Gate::new();
    let mute = gate.clone();
    scene.log.on_call(move |call| if call.verb == Verb::Watch { Fault::Pause(mute.clone()) } else { Fault::Pass });
    let set = [scene.map("base", &[]), scene.map("held", &["base"])];
    scene.apply(&set).await;
    hold(&scene.admin, &set[1]).await;
    scene.delete().await;
    scene.until("it is waited for", &[], |o| blocker(o, "held").is_some()).await;
    release(&scene.admin, &set[1]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    gate.release();
}

#[tokio::test]
async fn without_watches_everything_works_by_asking() {
    let scene = Scene::with("watch-off", |b| b.watch(Watch::Off)).await;
    let set = [scene.map("base", &[]), scene.map("held", &["base"])];
    scene.apply(&set).await;
    hold(&scene.admin, &set[1]).await;
    scene.delete().await;
    scene.until("it is waited for", &[], |o| blocker(o, "held").is_some()).await;
    release(&scene.admin, &set[1]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_eq!(scene.present(&set).await, [false, false]);
    assert_eq!(scene.log.count(Verb::Watch), 0);
}

#[tokio::test]
async fn an_api_server_that_is_killed_in_the_middle_loses_nothing() {
    let plane = Plane::builder().start().await.unwrap();
    let scene = Scene::on(&plane, "killed", |b| b).await;
    let set: Vec<_> = (0..40)
        .map(|i| match i {
            0 => scene.map("x0", &[]),
            i => scene.map(&format!("x{i}"), &[&format!("x{}", i - 1)]),
        })
        .collect();
    let outage = async |verb: Verb, name: &'static str, set: &[DynamicObject]| {
        let gate = Gate::new();
        scene.log.once(move |call| call.verb == verb && call.name() == Some(name), Fault::Pause(gate.clone()));
        let live = reload(&scene.admin, &scene.track).await.unwrap();
        let during = async {
            gate.reached().await;
            plane.kill(Part::Apiserver).await.unwrap();
            gate.release();
        };
        let (outcome, ()) = tokio::join!(reconcile(&scene.custodian, &live, set), during);
        // What could not be told is an error or named; nothing is taken for gone or applied.
        assert!(
            outcome.error.is_some() || !outcome.unapplied.is_empty() || !outcome.removal.is_complete(),
            "{outcome:#?}"
        );
        let blind = reconcile(&scene.custodian, &live, set).await;
        assert!(!matches!(blind.phase, Phase::Applied | Phase::Released | Phase::Gone), "{blind:#?}");
        plane.start_part(Part::Apiserver).await.unwrap();
    };
    outage(Verb::Create, "x20", &set).await;
    scene.apply(&set).await;
    assert_eq!(scene.recorded().await.len(), 40);
    scene.log.clear();
    scene.delete().await;
    outage(Verb::Delete, "x20", &set).await;
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    let order: Vec<_> = scene.deleted().into_iter().filter(|n| set.iter().any(|o| o.name_any() == *n)).collect();
    let expected: Vec<_> = (0..40).rev().map(|i| format!("x{i}")).collect();
    assert_eq!(order, expected);
    drop(scene);
    plane.shutdown().await.unwrap();
}

// ---- adoption ----------------------------------------------------------------------

/// What exists before we come: nobody's, an owned one.
async fn strangers(scene: &Scene) -> [DynamicObject; 2] {
    let owner = create(&scene.admin, &scene.map("owner", &[])).await;
    let free = create(&scene.admin, &scene.map("free", &[])).await;
    let mut owned = scene.map("owned", &[]);
    owned.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
        }))
        .unwrap(),
    ]);
    [free, create(&scene.admin, &owned).await]
}

#[tokio::test]
async fn c30_nothing_is_adopted_unless_that_is_allowed() {
    let scene = Scene::new("adopt-never").await;
    let before = strangers(&scene).await;
    let set = [scene.map("free", &[]), scene.map("owned", &[])];
    let outcome = scene.until("both are reported", &set, |o| o.unapplied.len() == 2).await;
    assert!(outcome.unapplied.iter().all(|u| matches!(u.problem, Problem::Exists { .. })), "{outcome:#?}");
    assert!(scene.recorded().await.is_empty());
    scene.tear_down().await;
    for object in &before {
        assert_untouched(&scene.admin, object).await;
    }
}

#[tokio::test]
async fn c30_what_nobody_owns_may_be_adopted_and_is_left_at_the_end() {
    let scene = Scene::with("adopt-unowned", |b| b.adoption(Adoption::IfUnowned)).await;
    let before = strangers(&scene).await;
    let set = [scene.map("free", &[]), scene.map("owned", &[]), scene.map("ours", &["free"])];
    let outcome = scene.until("one is adopted", &set, |o| o.unapplied.len() == 1 && o.applied.len() >= 2).await;
    assert!(matches!(problem(&outcome, "owned"), Some(Problem::Exists { .. })), "{outcome:#?}");
    let adopted = live(&scene.admin, &before[0]).await.unwrap();
    assert!(adopted.annotations().contains_key(&back_pointer()));
    assert_eq!(scene.inventory().await.get(&scene.id("free")).unwrap().origin, Origin::Adopted);
    let outcome = scene.tear_down().await;
    assert_eq!(outcome.removal.kept.iter().map(|k| k.id.name()).collect::<Vec<_>>(), ["free"]);
    let left = live(&scene.admin, &before[0]).await.unwrap();
    assert_eq!(left.metadata.uid, before[0].metadata.uid);
    assert!(left.labels().is_empty() && !left.annotations().contains_key(&back_pointer()), "{left:#?}");
    assert_untouched(&scene.admin, &before[1]).await;
    assert!(!exists(&scene.admin, &set[2]).await);
    assert!(scene.attempted().iter().all(|n| n != "free"));
}

#[tokio::test]
async fn c30_an_adopted_object_that_is_dropped_is_left() {
    let scene = Scene::with("adopt-drop", |b| b.adoption(Adoption::Always)).await;
    let before = strangers(&scene).await;
    let set = [scene.map("free", &[]), scene.map("owned", &[]), scene.map("stays", &[])];
    scene.apply(&set).await;
    let outcome = scene.apply(&set[2..]).await;
    assert_eq!(scene.present(&set).await, [true; 3], "{outcome:#?}");
    let owned = live(&scene.admin, &before[1]).await.unwrap();
    assert_eq!(owned.metadata.owner_references, before[1].metadata.owner_references, "foreign references survive");
    assert!(!owned.annotations().contains_key(&back_pointer()));
    assert_eq!(scene.recorded().await, ["stays"]);
}

#[tokio::test]
async fn a_crash_between_recording_an_adoption_and_marking_it_does_not_make_it_ours_to_delete() {
    let scene = Scene::with("adopt-crash", |b| b.adoption(Adoption::IfUnowned)).await;
    let before = strangers(&scene).await;
    let set = [scene.map("free", &[])];
    scene.log.on_call(|call| match (call.verb, call.name()) {
        (Verb::Patch, Some("free")) => Fault::Drop,
        _ => Fault::Pass,
    });
    scene.until("it cannot be marked", &set, |o| matches!(problem(o, "free"), Some(Problem::Refused { .. }))).await;
    assert_eq!(scene.recorded().await, ["free"]);
    scene.log.heal();
    scene.tear_down().await;
    assert_untouched(&scene.admin, &before[0]).await;
}

#[tokio::test]
async fn two_parents_that_adopt_one_object_at_once_do_not_both_get_it() {
    let scene = Scene::with("adopt-race", |b| b.adoption(Adoption::Always)).await;
    strangers(&scene).await;
    let other = parent(&scene.admin, &scene.ns, "other").await;
    let set = [scene.map("free", &[])];
    // The other parent gets it right before our marks go on.
    let (custodian, rival, desired) = (scene.custodian.clone(), other.clone(), set.clone());
    let first = std::sync::atomic::AtomicBool::new(true);
    scene.before(
        move |call| call.verb == Verb::Patch && call.name() == Some("free") && first.swap(false, Ordering::SeqCst),
        move |admin| {
            let (custodian, rival, desired) = (custodian.clone(), rival.clone(), desired.clone());
            async move {
                let outcome = settle(&custodian, &admin, &rival, &desired).await;
                assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
            }
        },
    );
    let outcome = scene
        .until("it is the other's", &set, |o| {
            matches!(problem(o, "free"), Some(Problem::Disowned | Problem::Exists { .. }))
        })
        .await;
    assert_eq!(outcome.phase, Phase::Progressing);
    let live = live(&scene.admin, &set[0]).await.unwrap();
    assert_eq!(live.labels()[&label()], other.uid().unwrap());
    assert!(live.annotations()[&back_pointer()].contains(&other.uid().unwrap()));
    assert_eq!(settle(&scene.custodian, &scene.admin, &other, &set).await.phase, Phase::Applied);
}

// ---- fields ----------------------------------------------------------------------------

#[tokio::test]
async fn dropped_fields_disappear_and_fields_of_others_stay() {
    let scene = Scene::new("fields").await;
    let with = |data: Value| {
        let mut object = scene.map("x", &[]);
        object.data["data"] = data;
        object
    };
    scene.apply(&[with(json!({"a": "1", "b": "1"}))]).await;
    let theirs = json!({"data": {"theirs": "1"}, "metadata": {"labels": {"theirs": "1"}, "finalizers": [HOLD]}});
    patch(&scene.admin, &with(json!({})), theirs).await;
    scene.apply(&[with(json!({"a": "2"}))]).await;
    let now = live(&scene.admin, &with(json!({}))).await.unwrap();
    assert_eq!(now.data["data"], json!({"a": "2", "theirs": "1"}));
    assert_eq!((now.labels()["theirs"].as_str(), now.finalizers()), ("1", [HOLD.to_owned()].as_slice()));
    // A field that somebody else set in the meantime is a conflict, not a prey.
    patch(&scene.admin, &with(json!({})), json!({"data": {"a": "theirs"}})).await;
    let outcome = scene.until("the conflict is named", &[with(json!({"a": "3"}))], |o| problem(o, "x").is_some()).await;
    assert!(matches!(problem(&outcome, "x"), Some(Problem::FieldConflict { .. })), "{outcome:#?}");
    assert_eq!(live(&scene.admin, &with(json!({}))).await.unwrap().data["data"]["a"], "theirs");
    release(&scene.admin, &with(json!({}))).await;
}

#[tokio::test]
async fn marks_that_admission_takes_off_are_reported_and_the_object_is_never_deleted() {
    let scene = Scene::new("mutating").await;
    let name = scene.ns.clone();
    let api = "admissionregistration.k8s.io/v1";
    let policy = object(json!({
        "apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"],
            }]},
            "matchConditions": [{"name": "one", "expression": format!("object.metadata.name == 'stripped-{name}'")}],
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
                "[JSONPatch{op: \"remove\", path: \"/metadata/annotations\"}]"}}],
        },
    }));
    let binding = object(json!({
        "apiVersion": api, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name},
    }));
    create(&scene.admin, &policy).await;
    create(&scene.admin, &binding).await;
    let target = format!("stripped-{name}");
    let probe = {
        let mut probe = scene.map(&target, &[]);
        probe.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
        probe
    };
    fixtures::eventually("the policy is enforced", async || {
        let stripped = create(&scene.admin, &probe).await.metadata.annotations.is_none();
        remove(&scene.admin, &probe).await;
        stripped.then_some(())
    })
    .await;
    let set = [scene.map(&target, &[]), scene.map("x", &[])];
    let outcome = scene.until("it is reported", &set, |o| problem(o, &target).is_some()).await;
    assert!(matches!(problem(&outcome, &target), Some(Problem::Mutated { .. })), "{outcome:#?}");
    let outcome = scene.pass(&set).await;
    assert_eq!(
        problem(&outcome, &target),
        Some(&Problem::Disowned),
        "we know the UID, and nothing else shows that it is ours"
    );
    scene.delete().await;
    let outcome = scene.until("it holds", &[], |o| blocker(o, &target).is_some() && blocker(o, "x").is_none()).await;
    assert_eq!(blocker(&outcome, &target).unwrap().reason, Reason::Disowned);
    scene.custodian.abandon(&scene.track, &scene.id(&target)).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert!(exists(&scene.admin, &set[0]).await);
    remove(&scene.admin, &binding).await;
    remove(&scene.admin, &policy).await;
}

// ---- discretion --------------------------------------------------------------------------

#[tokio::test]
async fn c28_nothing_of_a_secret_is_written_or_said_anywhere_else() {
    let scene = Scene::new("c28").await;
    let marker = "c3VwZXJzZWNyZXQ";
    let plain = "supersecret";
    let secret = object(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": scene.ns},
        "stringData": {"key": plain},
    }));
    let set = [secret.clone(), scene.map("x", &[])];
    let mut said = format!("{:#?}", scene.apply(&set).await);
    // Refusals, too, that quote the manifest.
    let mut bad = secret.clone();
    bad.data["type"] = json!(plain);
    said += &format!(
        "{:#?}",
        scene.until("the type cannot change", &[bad, set[1].clone()], |o| !o.unapplied.is_empty()).await
    );
    hold(&scene.admin, &secret).await;
    scene.delete().await;
    said += &format!("{:#?}", scene.until("it holds", &[], |o| blocker(o, "s").is_some()).await);
    let writes = scene.log.calls_where(|c| c.verb.writes() && c.name() != Some("s"));
    for text in [plain, marker] {
        assert!(!said.contains(text), "{said}");
        let leaks: Vec<_> = writes.iter().filter(|c| format!("{:?} {:?}", c.body, c.path).contains(text)).collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }
    assert!(writes.len() > 5, "the record and the proxies were written");
    release(&scene.admin, &secret).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

/// kustomize-controller#338, #339: an object moves from a parent's set into that of a parent that is its child.
struct Move {
    scene: Scene,
    x: DynamicObject,
    inner: DynamicObject,
    uid: Option<String>,
}

impl Move {
    async fn new(prefix: &str) -> Self {
        let scene = Scene::new(prefix).await;
        let x = scene.map("x", &[]);
        let inner = Self::inner(&scene, "/1");
        scene.apply(&[x.clone(), inner.clone()]).await;
        let uid = live(&scene.admin, &x).await.unwrap().metadata.uid;
        scene.log.clear();
        Self { scene, x, inner, uid }
    }

    fn inner(scene: &Scene, path: &str) -> DynamicObject {
        object(json!({
            "apiVersion": "faros.pusher.com/v1alpha1", "kind": "GitTrack",
            "metadata": {"name": "inner", "namespace": scene.ns}, "spec": {"path": path},
        }))
    }

    /// One pass of the parent that is a child, which wants the object from now on.
    async fn inner_pass(&self) -> Outcome {
        let track: GitTrack =
            serde_json::from_value(serde_json::to_value(live(&self.scene.admin, &self.inner).await.unwrap()).unwrap())
                .unwrap();
        reconcile(&self.scene.custodian, &track, std::slice::from_ref(&self.x)).await
    }

    async fn outer_pass(&self) -> Outcome {
        self.scene.pass(std::slice::from_ref(&self.inner)).await
    }

    /// The object lived on, and belongs to the other parent by now.
    async fn assert_moved(&self) {
        fixtures::eventually_ok("both are done", async || {
            let outcomes = [self.outer_pass().await, self.inner_pass().await];
            let done = outcomes.iter().all(|o| o.phase == Phase::Applied);
            if done { Ok(()) } else { Err(format!("{outcomes:#?}")) }
        })
        .await;
        let x = live(&self.scene.admin, &self.x).await.expect("it was to live on");
        assert_eq!(x.metadata.uid, self.uid);
        assert!(self.scene.attempted().is_empty(), "{:?}", self.scene.attempted());
        let inner = live(&self.scene.admin, &self.inner).await.unwrap();
        assert_eq!(x.labels()[&format!("{MANAGER}/parent-uid")], inner.metadata.uid.clone().unwrap());
        assert!(!self.scene.inventory().await.entries().any(|e| e.id.name() == "x"));
        // And it goes with the one that has it.
        self.scene.delete().await;
        fixtures::eventually("all is gone", async || {
            if exists(&self.scene.admin, &self.inner).await {
                self.inner_pass().await;
            }
            let Some(outer) = reload(&self.scene.admin, &self.scene.track).await else { return Some(()) };
            reconcile(&self.scene.custodian, &outer, &[]).await;
            None
        })
        .await;
        assert!(!exists(&self.scene.admin, &self.x).await);
    }
}

#[tokio::test]
async fn c32_what_is_asked_for_before_it_is_dropped_is_handed_over() {
    let moving = Move::new("c32-asked").await;
    let refused = moving.inner_pass().await;
    assert!(refused.unapplied.iter().any(|u| u.to_string().contains("asked for")), "{refused:#?}");
    // As long as it is desired where it is, nothing follows.
    let both = [moving.x.clone(), moving.inner.clone()];
    assert_eq!(moving.scene.pass(&both).await.phase, Phase::Applied);
    moving.assert_moved().await;
}

#[tokio::test]
async fn c32_who_asks_and_changes_its_mind_is_given_nothing() {
    let moving = Move::new("c32-mind").await;
    moving.inner_pass().await;
    let inner: GitTrack =
        serde_json::from_value(serde_json::to_value(live(&moving.scene.admin, &moving.inner).await.unwrap()).unwrap())
            .unwrap();
    let other = [moving.scene.map("other", &[])];
    let outcome = settle(&moving.scene.custodian, &moving.scene.admin, &inner, &other).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    let x = live(&moving.scene.admin, &moving.x).await.unwrap();
    assert!(!x.annotations().contains_key(&format!("{MANAGER}/wanted-by")), "it is not asked for any more");
    moving.scene.apply(std::slice::from_ref(&moving.inner)).await;
    assert!(!exists(&moving.scene.admin, &moving.x).await);
}

/// It withdraws what it asked for, and is given it just before it says so: it has to part with it as with its own.
#[tokio::test]
async fn c32_what_comes_while_the_request_is_withdrawn_is_not_forgotten() {
    let moving = Move::new("c32-late").await;
    moving.inner_pass().await;
    let track: GitTrack =
        serde_json::from_value(serde_json::to_value(live(&moving.scene.admin, &moving.inner).await.unwrap()).unwrap())
            .unwrap();
    let outer = reload(&moving.scene.admin, &moving.scene.track).await.unwrap();
    let (custodian, set) = (moving.scene.custodian.clone(), [moving.inner.clone()]);
    let given = Arc::new(AtomicUsize::new(0));
    let (counter, x) = (Arc::clone(&given), moving.x.clone());
    let withdraws = |head: &CallHead| {
        head.verb == Verb::Patch
            && head.name() == Some("x")
            && head.body.as_ref().is_some_and(|body| {
                let operations = body.as_array().into_iter().flatten();
                let removed =
                    |op: &Value| op["op"] == "remove" && op["path"].as_str().unwrap_or("").contains("wanted-by");
                operations.into_iter().any(removed)
            })
    };
    let scene = &moving.scene;
    scene.before(withdraws, move |admin| {
        let (custodian, outer, set) = (custodian.clone(), outer.clone(), set.clone());
        let (counter, x) = (Arc::clone(&counter), x.clone());
        async move {
            if counter.fetch_add(1, Ordering::SeqCst) == 0 {
                let outcome = reconcile(&custodian, &outer, &set).await;
                let parent = live(&admin, &x).await.unwrap().labels()[&format!("{MANAGER}/parent-uid")].clone();
                assert_ne!(Some(&parent), outer.metadata.uid.as_ref(), "{outcome:#?}");
            }
        }
    });
    let other = [moving.scene.map("other", &[])];
    let outcome = settle(&moving.scene.custodian, &moving.scene.admin, &track, &other).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    assert!(given.load(Ordering::SeqCst) > 0, "nothing was withdrawn");
    assert!(!exists(&moving.scene.admin, &moving.x).await, "it was left behind, and nobody knows of it");
}

/// Whoever may write the object can have it ask for anybody.
#[tokio::test]
async fn c32_a_request_that_no_record_confirms_is_not_followed() {
    let moving = Move::new("c32-forged").await;
    let inner: GitTrack =
        serde_json::from_value(serde_json::to_value(live(&moving.scene.admin, &moving.inner).await.unwrap()).unwrap())
            .unwrap();
    let pointer = kube_custody::ownership::BackPointer::new(&ParentRef::of(&inner).unwrap(), &moving.scene.id("x"));
    let forged = json!({"metadata": {"annotations": {format!("{MANAGER}/wanted-by"): pointer.encode()}}});
    patch(&moving.scene.admin, &moving.x, forged).await;
    moving.scene.apply(std::slice::from_ref(&moving.inner)).await;
    assert!(!exists(&moving.scene.admin, &moving.x).await);
}
