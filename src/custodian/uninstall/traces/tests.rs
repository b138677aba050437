use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::*;
use crate::{
    inventory::ClusterId,
    object::ParentRef,
    ownership::{
        BackPointer, mark,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners, proxy_name},
        testing::{id, manager, parent, uid},
    },
};

fn proxies() -> ProxyKinds {
    <(GitTrackOwner, ClusterGitTrackOwner)>::kinds().unwrap()
}

fn resource(id: &ObjectId) -> ResourceKind {
    ResourceKind::new(id.group(), "v1", id.kind(), "things", id.scope())
}

fn meta(object: &ObjectId, object_uid: &str, of: Option<&ParentRef>) -> ObjectMeta {
    let mut meta = ObjectMeta {
        name: Some(object.name().into()),
        namespace: object.namespace().map(Into::into),
        uid: Some(object_uid.into()),
        ..ObjectMeta::default()
    };
    if let Some(of) = of {
        mark(&manager(), &BackPointer::new(of, object), &mut meta).unwrap();
    }
    meta
}

fn refer(meta: &mut ObjectMeta, name: &str, uid: &str) {
    meta.owner_references.get_or_insert_default().push(OwnerReference {
        api_version: "faros.pusher.com/v1alpha1".into(),
        kind: "GitTrackOwner".into(),
        name: name.into(),
        uid: uid.into(),
        ..OwnerReference::default()
    });
}

fn found(all: &[(ObjectId, ObjectMeta)]) -> Vec<Finding> {
    let (manager, proxies) = (manager(), proxies());
    let sighting = |(id, meta): &(ObjectId, ObjectMeta)| Sighting::of(&manager, Some(&proxies), &resource(id), meta);
    findings(&manager, Some(&proxies), Some(&ClusterId(uid("here"))), all.iter().filter_map(sighting).collect())
}

#[test]
fn c51_what_is_ours_is_found_and_what_is_not_is_not() {
    let (child, other) = (id("ConfigMap b/x"), id("ConfigMap b/y"));
    let proxy = id("GitTrackOwner.faros.pusher.com b/p");
    let mut theirs = meta(&other, "o", None);
    theirs.labels = Some(BTreeMap::from([("other.example.com/parent-uid".into(), "p-1".into())]));
    refer(&mut theirs, "p", "another-managers-proxy");
    let mut refers = meta(&id("ConfigMap b/z"), "z", None);
    refer(&mut refers, "p", "proxy");
    let mut dangling = meta(&child, "c", Some(&parent()));
    refer(&mut dangling, &proxy_name(&manager(), &parent().id, 0), "gone");
    refer(&mut dangling, "unrelated", "unrelated");
    let found = found(&[
        (child, dangling),
        (other, theirs),
        (id("ConfigMap b/z"), refers),
        (proxy.clone(), meta(&proxy, "proxy", Some(&parent()))),
    ]);
    let parts: Vec<_> = found.iter().map(|f| (f.object.id.name(), f.part)).collect();
    assert_eq!(parts, [("x", Part::Child), ("z", Part::Child), ("p", Part::Proxy)]);
    let owner = LiveRef::new(parent().id, parent().uid);
    assert!(found.iter().all(|f| f.parents == BTreeSet::from([owner.clone()])), "{found:#?}");
    assert_eq!(found[0].traces.references, BTreeSet::from([uid("gone")]));
    assert_eq!(found[1].traces.references, BTreeSet::from([uid("proxy")]));
}

#[test]
fn an_object_that_two_groups_serve_is_found_once_under_the_identity_it_was_marked_with() {
    let marked = id("Ingress.networking.k8s.io b/x");
    let other = id("Ingress.extensions b/x");
    let seen = meta(&marked, "u", Some(&parent()));
    for order in [[&marked, &other], [&other, &marked]] {
        let found = found(&order.map(|id| (id.clone(), seen.clone())));
        assert!(found.len() == 1 && found[0].object.id == marked, "{found:#?}");
    }
}

fn known(staying: &[&str], others: &[&str], done: &[&str], complete: bool) -> Parents {
    let of = |uids: &[&str], id: ObjectId| uids.iter().map(|u| (uid(u), id.clone())).collect();
    Parents {
        kind: parent().id.group_kind(),
        staying: of(staying, parent().id),
        others: of(others, id("ClusterGitTrack.faros.pusher.com track")),
        done: of(done, parent().id),
        complete,
    }
}

fn child_of(of: &ParentRef) -> Finding {
    let child = id("ConfigMap b/x");
    found(&[(child.clone(), meta(&child, "c", Some(of)))]).remove(0)
}

#[test]
fn what_belongs_to_a_parent_that_is_not_done_with_stays() {
    let may = |known: &Parents, finding: &Finding| known.may_clear(&manager(), finding).is_ok();
    let ours = child_of(&parent());
    assert!(may(&known(&[], &[], &["p-1"], false), &ours));
    assert!(may(&known(&[], &[], &[], false), &ours), "all parents of the kind are known, so it is gone");
    assert!(!may(&known(&["p-1"], &[], &[], true), &ours));
    assert!(!may(&known(&["p-1"], &[], &["p-1"], true), &ours), "what stays has the last word");
    let cluster = ParentRef { id: id("ClusterGitTrack.faros.pusher.com track"), ..parent() };
    assert!(!may(&known(&[], &[], &[], true), &child_of(&cluster)), "another kind is not uninstalled");
}

#[test]
fn what_a_parent_in_another_cluster_has_stays() {
    let child = id("ConfigMap b/x");
    let pointed = |home: &str| {
        let mut marked = meta(&child, "c", None);
        let pointer = BackPointer::new(&parent(), &child).from_cluster(ClusterId(uid(home)));
        mark(&manager(), &pointer, &mut marked).unwrap();
        found(&[(child.clone(), marked)]).remove(0)
    };
    let done = known(&[], &[], &["p-1"], true);
    let (here, there) = (pointed("here"), pointed("there"));
    assert!(done.may_clear(&manager(), &here).is_ok() && !done.is_of_others(&manager(), &here));
    assert!(done.may_clear(&manager(), &there).is_err() && done.is_of_others(&manager(), &there));
}

#[test]
fn nothing_of_an_earlier_incarnation_of_a_parent_that_stays_is_touched() {
    let earlier = child_of(&ParentRef { uid: uid("p-0"), ..parent() });
    assert!(known(&[], &[], &[], true).may_clear(&manager(), &earlier).is_ok());
    let refused = known(&["p-1"], &[], &[], true).may_clear(&manager(), &earlier);
    assert!(refused.is_err(), "the record of the parent may speak of it");
}

fn bare(label: Option<&str>, finalizer: Option<String>) -> Finding {
    let object = id("Secret b/x");
    let labels = label.map(|l| BTreeMap::from([(manager().parent_label(), l.to_owned())]));
    let meta = ObjectMeta { labels, finalizers: finalizer.map(|f| vec![f]), ..meta(&object, "c", None) };
    found(&[(object, meta)]).remove(0)
}

#[test]
fn a_bare_label_goes_only_when_nobody_can_need_it() {
    let finding = bare(Some("p-9"), None);
    let may = |known: Parents| known.may_clear(&manager(), &finding).is_ok();
    assert!(!may(known(&["p-9"], &[], &[], true)) && !may(known(&[], &["p-9"], &[], true)));
    assert!(!may(known(&[], &[], &[], false)), "it may be that of a parent that was not seen");
    assert!(may(known(&[], &[], &["p-9"], false)) && may(known(&[], &[], &[], true)));
    assert!(known(&[], &["p-9"], &[], true).is_of_others(&manager(), &finding));
}

#[test]
fn a_hold_goes_only_when_no_parent_of_the_kind_stays_that_it_may_be_for() {
    let finding = bare(None, Some(manager().hold_finalizer(&parent().id, &uid("p-9"))));
    let may = |known: Parents| known.may_clear(&manager(), &finding).is_ok();
    assert!(may(known(&["p-1"], &[], &["p-9"], false)) && may(known(&[], &[], &[], false)));
    assert!(!may(known(&["p-9"], &[], &[], true)) && !may(known(&["p-1"], &[], &[], true)));
    let other = id("ClusterGitTrack.faros.pusher.com track");
    let finding = bare(None, Some(manager().hold_finalizer(&other, &uid("p-9"))));
    let known = known(&[], &[], &["p-9"], true);
    assert!(known.may_clear(&manager(), &finding).is_err() && known.is_of_others(&manager(), &finding));
}

#[test]
fn keys_of_the_author_are_told_from_the_crates() {
    let object = id("ConfigMap b/x");
    let mut with = meta(&object, "c", Some(&parent()));
    with.finalizers = Some(vec![format!("{}/own", manager())]);
    let finding = found(&[(object, with)]).remove(0);
    let manager = manager();
    let unknown: Vec<_> = finding.traces.unknown(&manager).collect();
    assert_eq!(unknown, [&format!("{manager}/own")]);
}
