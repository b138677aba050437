//! helm-operator-plugins #137: the record of what was created disappears before the finalizer reads it.
//!
//! The namespace of the parent is deleted, or its inventory is, by hand or by force: no child is left behind, or the
//! parent says why it is held.

use std::{collections::BTreeSet, time::Duration};

use control_plane::{
    Plane,
    audit::{AuditLog, Call, Fault, Refusal, Verb},
    fixtures::{self, Subject, rule},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace},
    rbac::v1::{ClusterRole, PolicyRule, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use kube_custody::{
    custodian::{Builder, Custodian, Hold, Outcome, Phase, Problem},
    inventory::{ConfigMapStore, Entry, Inventory, InventoryStore, Loaded, SaveOptions},
    manager::Manager,
    object::{ObjectId, ParentRef, ResourceKind, Scope},
    ownership::OwnershipPolicy,
    teardown::Reason,
};
use serde_json::{Value, json};

use crate::world::*;

/// A parent in a namespace, its inventory beside it, and children there, elsewhere and in cluster scope.
struct Hop {
    admin: Client,
    operator: Client,
    log: AuditLog,
    custodian: Custodian<GitTrack>,
    track: GitTrack,
    home: String,
    other: String,
    set: Vec<DynamicObject>,
}

impl Hop {
    async fn new(prefix: &str) -> Self {
        Self::with(prefix, |b| b).await
    }

    async fn with(prefix: &str, options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>) -> Self {
        let admin = client().await;
        let (operator, log) = Plane::shared().await.audited("admin");
        let custodian = options(builder(operator.clone())).build().unwrap();
        let home = new_namespace(&admin, prefix).await;
        let track = parent(&admin, &home, "track").await;
        let other = fixtures::ns(&format!("{prefix}-other"));
        let set = children(&home, &other);
        Self { admin, operator, log, custodian, track, home, other, set }
    }

    async fn applied(prefix: &str) -> Self {
        let hop = Self::new(prefix).await;
        hop.apply().await;
        hop
    }

    /// Another operator, after the first one is gone.
    fn restart(&mut self) {
        self.custodian = builder(self.operator.clone()).build().unwrap();
    }

    async fn apply(&self) {
        let outcome = settle(&self.custodian, &self.admin, &self.track, &self.set).await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    }

    async fn pass(&self) -> Outcome {
        reconcile(&self.custodian, &reload(&self.admin, &self.track).await.unwrap(), &self.set).await
    }

    fn store(&self) -> ConfigMapStore {
        ConfigMapStore::new(self.admin.clone(), Manager::new(MANAGER).unwrap())
    }

    async fn load(&self) -> Loaded {
        self.store().load(&ParentRef::of(&self.track).unwrap()).await.unwrap()
    }

    async fn inventory(&self) -> Inventory {
        match self.load().await {
            Loaded::Found(snapshot) => snapshot.inventory,
            other => panic!("{other:?}"),
        }
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.admin.clone(), &self.home)
    }

    /// The stored objects.
    async fn records(&self) -> Vec<ConfigMap> {
        records(&self.admin, &self.home).await
    }

    /// Deletes the stored objects, which their finalizers keep.
    async fn delete_records(&self) {
        for record in self.records().await {
            self.maps().delete(&record.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }

    /// Takes the stored objects away by force.
    async fn take_away(&self) {
        for record in self.records().await {
            force(&self.maps(), &record.name_any()).await;
        }
        assert!(matches!(self.load().await, Loaded::Missing));
    }

    /// Spoils the stored entry of an object.
    async fn spoil(&self, object: &DynamicObject, spoil: impl Fn(&str) -> Value) {
        let key = format!("entry.{}", ObjectId::of(object).unwrap().stable_id());
        for record in self.records().await {
            if let Some(text) = record.data.as_ref().and_then(|data| data.get(&key)) {
                let patch = Patch::Merge(json!({"data": {&key: spoil(text)}}));
                self.maps().patch(&record.name_any(), &PatchParams::default(), &patch).await.unwrap();
                return;
            }
        }
        panic!("no {key}");
    }

    /// Reconciles while the parent exists; every outcome on the way.
    async fn reconcile_to_the_end(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for _ in 0..240 {
            let Some(live) = reload(&self.admin, &self.track).await else { return outcomes };
            outcomes.push(reconcile(&self.custodian, &live, &self.set).await);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let last = outcomes
            .last()
            .map(|o| (&o.phase, &o.notes, &o.error, o.removal.blockers.first(), o.removal.waiting.first()));
        panic!("the parent is still there: {last:#?}");
    }

    async fn delete_namespace(&self) {
        let api = Api::<Namespace>::all(self.admin.clone());
        api.delete(&self.home, &DeleteParams::default()).await.unwrap();
    }

    /// Everything is gone: children in all scopes, in their order, and the parent's namespace.
    async fn assert_all_gone(&self) {
        for object in &self.set {
            fixtures::gone(api_of(&self.admin, object), &object.name_any()).await;
        }
    }

    async fn assert_namespace_goes(&self) {
        fixtures::gone(Api::<Namespace>::all(self.admin.clone()), &self.home).await;
    }

    /// Names of the set's objects that were deleted by us, in order.
    fn deleted(&self) -> Vec<String> {
        let names: BTreeSet<_> = self.set.iter().map(ResourceExt::name_any).collect();
        let deletes = self.log.calls_where(|c| c.head.verb == Verb::Delete && c.effective);
        let deleted = deletes.iter().filter_map(|c| c.head.target.name.clone());
        deleted.filter(|name| names.contains(name)).collect()
    }

    async fn nothing_changed(&self, what: impl AsyncFnOnce()) {
        let before = self.log.calls_where(writes_to_children);
        what().await;
        let after = self.log.calls_where(writes_to_children);
        assert_eq!(after.len(), before.len(), "{after:#?}");
    }
}

fn writes_to_children(call: &Call) -> bool {
    let name = call.head.name().unwrap_or_default();
    call.effective
        && call.head.verb.writes()
        && !name.starts_with("inventory-")
        && call.head.target.plural != "gittracks"
}

/// `top` (cluster scope) → `middle` (another namespace) → `base` (cluster scope), and one in the parent's namespace.
fn children(home: &str, other: &str) -> Vec<DynamicObject> {
    let (base, top) = (format!("base-{home}"), format!("top-{home}"));
    vec![
        namespace(other),
        cluster_role(&base, &[]),
        config_map(other, "middle", &[&format!("rbac.authorization.k8s.io/ClusterRole/{base}")]),
        cluster_role(&top, &[&format!("/namespaces/{other}/ConfigMap/middle")]),
        config_map(home, "local", &[]),
    ]
}

async fn records(client: &Client, namespace: &str) -> Vec<ConfigMap> {
    let labelled = ListParams::default().labels(&format!("{MANAGER}/inventory"));
    Api::<ConfigMap>::namespaced(client.clone(), namespace).list(&labelled).await.unwrap().items
}

async fn force(api: &Api<ConfigMap>, name: &str) {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    fixtures::delete(api, name).await;
    fixtures::gone(api.clone(), name).await;
}

fn assert_order(hop: &Hop) {
    let deleted = hop.deleted();
    assert_before(&deleted, &format!("top-{}", hop.home), "middle");
    assert_before(&deleted, "middle", &format!("base-{}", hop.home));
    assert_before(&deleted, "middle", &hop.other);
}

#[tokio::test]
async fn the_namespace_of_the_parent_is_deleted() {
    let hop = Hop::applied("hop-ns").await;
    hop.delete_namespace().await;
    hop.reconcile_to_the_end().await;
    assert_order(&hop);
    hop.assert_all_gone().await;
    hop.assert_namespace_goes().await;
}

#[tokio::test]
async fn the_namespace_is_deleted_while_the_operator_is_down() {
    let mut hop = Hop::applied("hop-down").await;
    hop.delete_namespace().await;
    fixtures::eventually("the namespace controller has come by", async || {
        let live = reload(&hop.admin, &hop.track).await?;
        let local = exists(&hop.admin, hop.set.last().unwrap()).await;
        (live.metadata.deletion_timestamp.is_some() && !local).then_some(())
    })
    .await;
    for record in hop.records().await {
        assert!(record.metadata.deletion_timestamp.is_some(), "only our guard keeps it");
    }
    hop.restart();
    hop.reconcile_to_the_end().await;
    assert_order(&hop);
    hop.assert_all_gone().await;
    hop.assert_namespace_goes().await;
}

#[tokio::test]
async fn control_a_naive_operator_orphans_the_cluster_scoped_child() {
    let admin = client().await;
    let home = new_namespace(&admin, "hop-naive").await;
    let track = parent(&admin, &home, "track").await;
    let tracks = Api::<GitTrack>::namespaced(admin.clone(), &home);
    let finalizers = |list: Value| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    tracks.patch("track", &PatchParams::default(), &finalizers(json!(["naive.example.com/cleanup"]))).await.unwrap();
    let child = cluster_role(&format!("naive-{home}"), &[]);
    create(&admin, &child).await;
    let inventory = object(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inventory", "namespace": home},
        "data": {"children": child.name_any()},
    }));
    create(&admin, &inventory).await;

    Api::<Namespace>::all(admin.clone()).delete(&home, &DeleteParams::default()).await.unwrap();
    fixtures::eventually("the parent is being deleted", async || {
        reload(&admin, &track).await.unwrap().metadata.deletion_timestamp.is_some().then_some(())
    })
    .await;
    fixtures::gone(api_of(&admin, &inventory), "inventory").await;
    // "Not found: there is nothing to do", says the operator.
    tracks.patch("track", &PatchParams::default(), &finalizers(Value::Null)).await.unwrap();
    fixtures::gone(Api::<Namespace>::all(admin.clone()), &home).await;
    assert!(exists(&admin, &child).await, "an orphan");
    remove(&admin, &child).await;
}

#[tokio::test]
async fn a_record_deleted_by_hand_is_written_afresh_before_it_is_let_go() {
    let hop = Hop::applied("hop-hand").await;
    let before = hop.inventory().await;
    let old = hop.records().await.remove(0);
    hop.delete_records().await;
    hop.log.clear();
    assert_eq!(hop.pass().await.phase, Phase::Applied);
    let now = hop.records().await;
    assert!(now.iter().all(|r| r.metadata.deletion_timestamp.is_none() && r.metadata.uid != old.metadata.uid));
    assert_eq!(hop.inventory().await, before);
    let stored = hop.log.calls_where(|c| {
        let name = c.head.name().unwrap_or_default();
        c.effective
            && c.head.verb.writes()
            && !c.head.is_dry_run()
            && (name.starts_with("inventory-") || c.head.verb == Verb::Create)
    });
    let created = stored.iter().position(|c| c.head.verb == Verb::Create).unwrap();
    let released = stored.iter().position(|c| {
        let list = c.head.body.as_ref().and_then(|b| b.pointer("/metadata/finalizers"));
        c.head.name() == Some(&old.name_any()) && list.is_some_and(|l| l.as_array().is_some_and(Vec::is_empty))
    });
    assert!(created < released.unwrap(), "{stored:#?}");
    // Again, and then to the end.
    hop.delete_records().await;
    assert_eq!(hop.pass().await.phase, Phase::Applied);
    assert_eq!(hop.inventory().await, before);
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    assert_order(&hop);
    hop.assert_all_gone().await;
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn a_record_deleted_by_hand_in_a_terminating_namespace_is_kept_and_reported() {
    let hop = Hop::applied("hop-term").await;
    hop.delete_namespace().await;
    hop.delete_records().await;
    let uid = hop.records().await[0].metadata.uid.clone();
    let outcome = hop.pass().await;
    assert!(outcome.notes.iter().any(|n| n.contains("cannot be replaced")), "{outcome:#?}");
    assert_eq!(hop.records().await[0].metadata.uid, uid);
    hop.reconcile_to_the_end().await;
    assert_order(&hop);
    hop.assert_all_gone().await;
    hop.assert_namespace_goes().await;
}

#[tokio::test]
async fn taken_away_by_force_while_the_parent_lives() {
    let hop = Hop::applied("hop-force").await;
    let before = hop.inventory().await;
    hop.take_away().await;
    let outcome = hop.pass().await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    assert!(outcome.notes.iter().any(|n| n.contains("the inventory was missing")), "{outcome:#?}");
    assert_eq!(hop.inventory().await, before, "edges of what is desired are known again, too");
    // Dropped while there was no record: it is pruned all the same.
    hop.take_away().await;
    let rest: Vec<_> = hop.set.iter().filter(|o| !o.name_any().starts_with("top-")).cloned().collect();
    let outcome = settle(&hop.custodian, &hop.admin, &hop.track, &rest).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    assert!(!exists(&hop.admin, &hop.set[3]).await);
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    hop.assert_all_gone().await;
}

#[tokio::test]
async fn taken_away_by_force_while_the_parent_is_being_deleted() {
    let mut hop = Hop::applied("hop-force-del").await;
    delete(&hop.admin, &hop.track).await;
    hop.take_away().await;
    hop.restart();
    hop.log.clear();
    let outcomes = hop.reconcile_to_the_end().await;
    assert!(outcomes[0].notes.iter().any(|n| n.contains("the inventory was missing")), "{:#?}", outcomes[0]);
    // The objects' own annotations tell their order.
    assert_order(&hop);
    let names: BTreeSet<_> = hop.set.iter().map(ResourceExt::name_any).collect();
    let creates = hop.log.calls_where(|c| c.head.verb == Verb::Create && c.effective);
    let created = |c: &Call| c.head.body.as_ref().and_then(|b| b["metadata"]["name"].as_str()).unwrap_or("").to_owned();
    assert!(
        creates.iter().all(|c| !names.contains(&created(c)) && created(c).starts_with("inventory-")),
        "{creates:#?}"
    );
    hop.assert_all_gone().await;
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn taken_away_by_force_with_the_namespace() {
    let hop = Hop::applied("hop-force-ns").await;
    hop.delete_namespace().await;
    hop.take_away().await;
    fixtures::eventually("the parent is being deleted", async || {
        reload(&hop.admin, &hop.track).await.unwrap().metadata.deletion_timestamp.map(|_| ())
    })
    .await;
    let outcomes = hop.reconcile_to_the_end().await;
    let noted = outcomes.iter().any(|o| o.notes.iter().any(|n| n.contains("cannot be stored again")));
    assert!(noted, "{outcomes:#?}");
    assert_order(&hop);
    hop.assert_all_gone().await;
    hop.assert_namespace_goes().await;
}

fn missing(outcome: &Outcome) -> &str {
    match &outcome.phase {
        Phase::Held(Hold::InventoryMissing { words }) => words,
        other => panic!("{other:?}: {outcome:#?}"),
    }
}

#[tokio::test]
async fn what_cannot_be_proven_complete_holds_the_parent_with_words() {
    let hop = Hop::applied("hop-hold").await;
    let tracks = Api::<GitTrack>::namespaced(hop.admin.clone(), &hop.home);
    let key = format!("{MANAGER}/group-kinds");
    let noted = reload(&hop.admin, &hop.track).await.unwrap().annotations()[&key].clone();
    let annotate = async |value: Value| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {&key: value}}}));
        tracks.patch("track", &PatchParams::default(), &patch).await.unwrap();
    };
    hop.take_away().await;
    for deleting in [false, true] {
        if deleting {
            delete(&hop.admin, &hop.track).await;
        }
        hop.nothing_changed(async || {
            annotate(Value::Null).await;
            assert!(missing(&hop.pass().await).contains("is missing, so it is not known where to look"));
            annotate(json!("ConfigMap,not a kind!")).await;
            assert!(missing(&hop.pass().await).contains("which is no kind"));
            annotate(json!(format!("{noted},Widget.nobody.batch"))).await;
            hop.log.on_call(|head| {
                let definitions = head.target.plural == "customresourcedefinitions" && head.verb == Verb::List;
                if definitions { Fault::Fail(Refusal::status(403, "Forbidden", "no")) } else { Fault::Pass }
            });
            assert!(missing(&hop.pass().await).contains("not proven that nothing of it exists"));
            hop.log.heal();
            annotate(json!(noted)).await;
            hop.log.on_call(|head| {
                let roles = head.target.plural == "clusterroles" && head.verb == Verb::List;
                if roles { Fault::Fail(Refusal::status(403, "Forbidden", "may not list")) } else { Fault::Pass }
            });
            let outcome = hop.pass().await;
            assert!(
                missing(&outcome).contains("ClusterRole.rbac.authorization.k8s.io cannot be listed"),
                "{outcome:#?}"
            );
            assert!(missing(&outcome).contains("may not list"));
            hop.log.heal();
        })
        .await;
    }
    assert!(reload(&hop.admin, &hop.track).await.is_some());
    // A kind that nothing defines proves that there is nothing of it.
    annotate(json!(format!("{noted},Widget.nobody.batch"))).await;
    hop.reconcile_to_the_end().await;
    assert_order(&hop);
    hop.assert_all_gone().await;
}

#[tokio::test]
async fn what_is_left_in_the_cluster_on_purpose_is_left_without_a_record_too() {
    use kube_custody::custodian::Adoption;
    let hop = Hop::with("hop-keep", |b| b.adoption(Adoption::IfUnowned)).await;
    let (adopted, base) = (hop.set[4].clone(), hop.set[1].clone());
    create(&hop.admin, &adopted).await;
    hop.apply().await;
    hop.take_away().await;
    // It lives on, and its record is made again.
    assert_eq!(hop.pass().await.phase, Phase::Applied);
    hop.take_away().await;
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    let left = live(&hop.admin, &adopted).await.expect("adopted objects are kept");
    assert!(left.annotations().keys().chain(left.labels().keys()).all(|k| !k.starts_with(MANAGER)), "{left:#?}");
    assert!(!exists(&hop.admin, &base).await);
}

#[tokio::test]
async fn s09_a_damaged_record_is_completed_while_the_parent_lives() {
    for (prefix, cut) in [("hop-dmg-a", true), ("hop-dmg-b", false)] {
        let hop = Hop::applied(prefix).await;
        let before = hop.inventory().await;
        let spoil = |text: &str| if cut { json!(text[..text.len() / 2]) } else { Value::Null };
        hop.spoil(&hop.set[2], spoil).await;
        assert!(matches!(hop.load().await, Loaded::Damaged { .. }));
        // Nothing is done on half a record ...
        hop.log.on_call(|head| {
            let maps = head.target.plural == "configmaps" && head.verb == Verb::List;
            if maps { Fault::Fail(Refusal::status(403, "Forbidden", "may not list")) } else { Fault::Pass }
        });
        hop.nothing_changed(async || {
            let outcome = hop.pass().await;
            assert!(!outcome.damage.is_empty() && outcome.phase == Phase::Failed, "{outcome:#?}");
            let words = outcome.error.unwrap().to_string();
            assert!(words.contains("may not list"), "{words}");
        })
        .await;
        hop.log.heal();
        // ... unless the cluster completes it.
        let outcome = hop.pass().await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
        assert!(!outcome.damage.is_empty(), "named");
        assert_eq!(hop.inventory().await, before);
        assert!(hop.pass().await.damage.is_empty());
        delete(&hop.admin, &hop.track).await;
        hop.reconcile_to_the_end().await;
        assert_order(&hop);
        hop.assert_all_gone().await;
    }
}

#[tokio::test]
async fn s09_a_damaged_record_does_not_hold_a_parent_whose_children_can_be_listed() {
    let mut hop = Hop::applied("hop-dmg-del").await;
    // What depends on base, and what top depends on; and nothing on the object tells its order.
    hop.spoil(&hop.set[2], |text| json!(text[..text.len() / 2])).await;
    patch(&hop.admin, &hop.set[2], json!({"metadata": {"annotations": {"config.kubernetes.io/depends-on": null}}}))
        .await;
    delete(&hop.admin, &hop.track).await;
    hop.restart();
    hop.log.on_call(|head| {
        let maps = head.target.plural == "configmaps" && head.verb == Verb::List;
        if maps { Fault::Fail(Refusal::status(403, "Forbidden", "may not list")) } else { Fault::Pass }
    });
    // What cannot be hidden in the damaged part goes; what may be needed by it is held.
    let outcome = fixtures::eventually("only what is held is left", async || {
        let outcome = hop.pass().await;
        let held = blocker(&outcome, &format!("base-{}", hop.home)).is_some_and(|b| b.reason == Reason::Damaged);
        (held && !exists(&hop.admin, &hop.set[3]).await).then_some(outcome)
    })
    .await;
    assert!(!outcome.damage.is_empty() && outcome.notes.iter().any(|n| n.contains("may not list")), "{outcome:#?}");
    assert!(exists(&hop.admin, &hop.set[1]).await && exists(&hop.admin, &hop.set[2]).await);
    hop.log.heal();
    hop.reconcile_to_the_end().await;
    assert_order(&hop);
    hop.assert_all_gone().await;
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn c26_s16_a_sharded_record_is_renewed_and_a_shard_taken_by_force_is_completed() {
    let hop = Hop::applied("hop-shards").await;
    let parent = ParentRef::of(&hop.track).unwrap();
    let store = hop.store();
    let Loaded::Found(snapshot) = store.load(&parent).await.unwrap() else { panic!() };
    let mut inventory = snapshot.inventory;
    let resource = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    for number in 0..2000_u64 {
        // Long names that hardly compress.
        let words = (0..14_u64).map(|i| (number * 31 + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let name: String = words.map(|word| format!("{word:016x}")).collect();
        let id = ObjectId::new("", "ConfigMap", Some(&hop.home), &name).unwrap();
        inventory.insert(Entry::intended(id, &resource));
    }
    store.delete(&parent, &snapshot.version).await.unwrap();
    store.save(&inventory, SaveOptions::create()).await.unwrap();
    let shards = hop.records().await.len();
    assert!(shards > 2, "{shards}");
    let before = hop.inventory().await;
    hop.delete_records().await;
    let Loaded::Found(snapshot) = store.load(&parent).await.unwrap() else { panic!() };
    assert!(snapshot.terminating);
    store.save(&snapshot.inventory, SaveOptions::replace(snapshot.version).renew(true)).await.unwrap();
    assert!(hop.records().await.iter().all(|r| r.metadata.deletion_timestamp.is_none()));
    assert_eq!(hop.inventory().await, before);

    let shard =
        hop.records().await.into_iter().map(|r| r.name_any()).find(|n| !n.ends_with("-a") && !n.ends_with("-b"));
    force(&hop.maps(), &shard.unwrap()).await;
    assert!(matches!(hop.load().await, Loaded::Damaged { .. }));
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    hop.assert_all_gone().await;
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn c05_a_parent_that_was_made_again_is_held_until_it_is_linked() {
    let mut hop = Hop::applied("hop-restored").await;
    let tracks = Api::<GitTrack>::namespaced(hop.admin.clone(), &hop.home);
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tracks.patch("track", &PatchParams::default(), &patch).await.unwrap();
    delete(&hop.admin, &hop.track).await;
    let old = hop.track.metadata.uid.clone().unwrap();
    hop.track = parent(&hop.admin, &hop.home, "track").await;
    for deleting in [false, true] {
        if deleting {
            delete(&hop.admin, &hop.track).await;
        }
        hop.nothing_changed(async || {
            let outcome = hop.pass().await;
            assert!(
                matches!(&outcome.phase, Phase::Held(Hold::Restored { recorded }) if recorded.as_str() == old),
                "{outcome:#?}"
            );
        })
        .await;
    }
    let relinked = hop.custodian.relink(&hop.track).await.unwrap();
    assert!(relinked.is_complete() && relinked.foreign.is_empty(), "{relinked:#?}");
    hop.reconcile_to_the_end().await;
    hop.assert_all_gone().await;
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn nothing_was_created_and_nothing_is_waited_for() {
    let hop = Hop::new("hop-none").await;
    // Deleted before the first reconcile ever ran.
    let early = parent(&hop.admin, &hop.home, "early").await;
    delete(&hop.admin, &early).await;
    assert_eq!(reconcile(&hop.custodian, &early, &hop.set).await.phase, Phase::Gone);
    // Neither `applied` nor an inventory: let go at once.
    let tracks = Api::<GitTrack>::namespaced(hop.admin.clone(), &hop.home);
    let patch = Patch::Merge(json!({"metadata": {"finalizers": [format!("{MANAGER}/custody")]}}));
    tracks.patch("track", &PatchParams::default(), &patch).await.unwrap();
    delete(&hop.admin, &hop.track).await;
    assert_eq!(hop.pass().await.phase, Phase::Released);
    assert!(reload(&hop.admin, &hop.track).await.is_none());
    assert!(hop.log.calls_where(writes_to_children).is_empty());
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn a_second_parent_of_the_same_name_starts_from_nothing() {
    let mut hop = Hop::applied("hop-second").await;
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    hop.track = parent(&hop.admin, &hop.home, "track").await;
    hop.apply().await;
    // An empty record of an incarnation that is gone, as a crash between the last two steps leaves it, is in nobody's way.
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    let left = Inventory::new(
        ParentRef::of(&hop.track).unwrap(),
        kube_custody::discovery::cluster_id(&hop.admin).await.unwrap(),
    );
    hop.store().save(&left, SaveOptions::create()).await.unwrap();
    hop.track = parent(&hop.admin, &hop.home, "track").await;
    hop.apply().await;
    delete(&hop.admin, &hop.track).await;
    hop.reconcile_to_the_end().await;
    hop.assert_all_gone().await;
    assert!(hop.records().await.is_empty());
}

#[tokio::test]
async fn creates_in_a_namespace_that_is_being_deleted_end_the_creates_of_the_pass() {
    let hop = Hop::new("hop-inflight").await;
    let role = |n: usize| format!("late{n}-{}", hop.home);
    let local = format!("/namespaces/{}/ConfigMap/local", hop.home);
    let set = [config_map(&hop.home, "local", &[]), cluster_role(&role(0), &[&local]), cluster_role(&role(1), &[])];
    // The namespace goes between the parent's last look and the first create.
    let (admin, home) = (hop.admin.clone(), hop.home.clone());
    hop.log.before_call(move |head| {
        let (admin, home) = (admin.clone(), home.clone());
        async move {
            if head.verb == Verb::Create && head.target.plural.ends_with("gittrackowners") {
                Api::<Namespace>::all(admin).delete(&home, &DeleteParams::default()).await.ok();
            }
        }
    });
    let outcome = reconcile(&hop.custodian, &hop.track, &set).await;
    assert!(outcome.unapplied.iter().any(|u| u.problem == Problem::NamespaceTerminating), "{outcome:#?}");
    let creates = hop.log.calls_where(|c| c.head.verb == Verb::Create && !c.head.is_dry_run());
    let refused = creates.iter().filter(|c| c.code == Some(403)).filter_map(|c| c.told).min().unwrap();
    let late: Vec<_> = creates.iter().filter(|c| c.made > refused).collect();
    assert!(late.is_empty(), "{late:#?}");
    hop.log.heal();
    let outcome = reconcile(&hop.custodian, &reload(&hop.admin, &hop.track).await.unwrap(), &set).await;
    assert!(!outcome.applied.iter().any(|r| r.id.name() == role(0)), "{outcome:#?}");
    for _ in 0..240 {
        let Some(live) = reload(&hop.admin, &hop.track).await else { break };
        reconcile(&hop.custodian, &live, &set).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    for object in &set {
        assert!(!exists(&hop.admin, object).await);
    }
    hop.assert_namespace_goes().await;
}

/// An operator in a namespace of its own, with rights from a Role in the parent's, and from a ClusterRole for the rest.
struct Tenant {
    hop: Hop,
    held: Vec<ObjectId>,
    grants: Vec<fixtures::Grant>,
}

fn held(home: &str) -> Vec<ObjectId> {
    let id = |kind: &str| ObjectId::new("rbac.authorization.k8s.io", kind, Some(home), "operator").unwrap();
    vec![id("Role"), id("RoleBinding")]
}

impl Tenant {
    async fn new(prefix: &str) -> Self {
        let plane = Plane::shared().await;
        let mut hop = Hop::new(prefix).await;
        let system = new_namespace(&hop.admin, &format!("{prefix}-sys")).await;
        let (operator, log) = fixtures::audited_service_account(plane, &system, "operator").await;
        let all = &["get", "list", "watch", "create", "patch", "delete"];
        let subject = Subject::service_account(&system, "operator");
        let named = |group: &str, resources: &[&str], verbs: &[&str], names: &[&str]| PolicyRule {
            resource_names: Some(names.iter().map(|n| (*n).to_owned()).collect()),
            ..rule(group, resources, verbs)
        };
        let cluster = vec![
            rule("rbac.authorization.k8s.io", &["clusterroles"], all),
            rule("faros.pusher.com", &["clustergittrackowners"], all),
            named("", &["namespaces"], &["get"], &["kube-system"]),
            // Holds: by name, and never from what is held.
            named("rbac.authorization.k8s.io", &["roles", "rolebindings"], &["get", "patch"], &["operator"]),
        ];
        let grants = vec![fixtures::grant(&hop.admin, &subject, None, cluster).await];
        let rules = json!([
            {"apiGroups": ["faros.pusher.com"], "resources": ["gittracks", "gittrackowners"], "verbs": all},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": all},
        ]);
        let metadata = json!({"name": "operator", "namespace": hop.home});
        create(
            &hop.admin,
            &object(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules,
            })),
        )
        .await;
        create(
            &hop.admin,
            &object(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
                "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": system}],
            })),
        )
        .await;
        let maps = Api::<ConfigMap>::namespaced(operator.clone(), &hop.home);
        fixtures::eventually("the rights are there", async || maps.list(&ListParams::default()).await.ok()).await;
        let (base, top) = (format!("base-{}", hop.home), format!("top-{}", hop.home));
        hop.set = vec![
            cluster_role(&base, &[]),
            config_map(&hop.home, "middle", &[&format!("rbac.authorization.k8s.io/ClusterRole/{base}")]),
            cluster_role(&top, &[&format!("/namespaces/{}/ConfigMap/middle", hop.home)]),
        ];
        (hop.operator, hop.log) = (operator, log);
        let held = held(&hop.home);
        let mut tenant = Self { hop, held, grants };
        tenant.restart();
        tenant
    }

    fn restart(&mut self) {
        let custodian =
            builder(self.hop.operator.clone()).hold(|parent| held(parent.id.namespace().unwrap_or_default()));
        self.hop.custodian = custodian.build().unwrap();
    }

    async fn end(self) {
        for grant in self.grants {
            grant.revoke(&self.hop.admin).await;
        }
    }
}

/// What is in the namespace itself may go by the namespace controller's hand, in no order.
fn assert_tenant_order(hop: &Hop) {
    assert_before(&hop.deleted(), &format!("top-{}", hop.home), &format!("base-{}", hop.home));
}

#[tokio::test]
async fn c14_rights_from_the_namespace_outlive_what_they_are_needed_for() {
    for down in [false, true] {
        let mut tenant = Tenant::new("hop-rbac").await;
        let hop = &tenant.hop;
        hop.apply().await;
        for kind in ["roles", "rolebindings"] {
            let finalizers = match kind {
                "roles" => {
                    Api::<Role>::namespaced(hop.admin.clone(), &hop.home)
                        .get("operator")
                        .await
                        .unwrap()
                        .metadata
                        .finalizers
                }
                _ => {
                    Api::<RoleBinding>::namespaced(hop.admin.clone(), &hop.home)
                        .get("operator")
                        .await
                        .unwrap()
                        .metadata
                        .finalizers
                }
            };
            assert!(finalizers.unwrap_or_default().iter().any(|f| f.contains("/hold-")), "{kind}");
        }
        hop.delete_namespace().await;
        if down {
            fixtures::eventually("the namespace controller has come by", async || {
                reload(&hop.admin, &hop.track).await?.metadata.deletion_timestamp.map(|_| ())
            })
            .await;
            tenant.restart();
        }
        let hop = &tenant.hop;
        hop.reconcile_to_the_end().await;
        assert_tenant_order(hop);
        hop.assert_all_gone().await;
        hop.assert_namespace_goes().await;
        tenant.end().await;
    }
}

#[tokio::test]
async fn rights_in_one_namespace_only_cost_few_refused_requests() {
    let tenant = Tenant::new("hop-watch").await;
    let hop = &tenant.hop;
    hop.apply().await;
    for _ in 0..20 {
        assert_eq!(hop.pass().await.phase, Phase::Applied);
    }
    let refused = hop.log.calls_where(|c| c.code == Some(403) && c.head.target.plural == "configmaps");
    assert!((1..6).contains(&refused.len()), "{refused:#?}");
    // Listing everywhere is forbidden, so a missing record cannot be proven complete: held, and it goes on once it can.
    hop.take_away().await;
    assert!(missing(&hop.pass().await).contains("cannot be listed"));
    // With a policy that confines the parent, its namespaces are all there is to look at.
    let custodian = builder(hop.operator.clone()).ownership(OwnershipPolicy::SameNamespace).build().unwrap();
    let own = [hop.set[1].clone()].map(|mut o| {
        o.metadata.annotations = None;
        o
    });
    let outcome = reconcile(&custodian, &reload(&hop.admin, &hop.track).await.unwrap(), &own).await;
    assert!(outcome.notes.iter().any(|n| n.contains("because listing it everywhere is forbidden")), "{outcome:#?}");
    delete(&hop.admin, &hop.track).await;
    tenant.end().await;
}

#[tokio::test]
async fn a_crash_between_the_last_steps_is_swept_up() {
    // At each of the last calls of the teardown, before and after it takes effect.
    use control_plane::audit::CutMode;
    for mode in [CutMode::Before, CutMode::After] {
        for back in 0..4 {
            let mut tenant = Tenant::new("hop-sweep").await;
            let hop = &tenant.hop;
            hop.apply().await;
            delete(&hop.admin, &hop.track).await;
            hop.log.clear();
            // The parent goes, and the operator is cut off `back` writes later.
            let gone = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let counted = std::sync::Arc::clone(&gone);
            hop.log.on_call(move |head| {
                use std::sync::atomic::Ordering::SeqCst;
                let lets_go = head.target.plural == "gittracks" && head.verb == Verb::Patch;
                let after = counted.load(SeqCst);
                if lets_go && after == 0 {
                    counted.store(1, SeqCst);
                    return if back == 0 && mode == CutMode::After { Fault::LoseAnswer } else { Fault::Pass };
                }
                if after == 0 || !head.verb.writes() || head.is_dry_run() {
                    return Fault::Pass;
                }
                counted.store(after + 1, SeqCst);
                match (after > back, after == back, mode) {
                    (true, ..) | (_, true, CutMode::Before) => Fault::Drop,
                    (_, true, _) => Fault::LoseAnswer,
                    _ => Fault::Pass,
                }
            });
            for _ in 0..40 {
                let Some(live) = reload(&hop.admin, &hop.track).await else { break };
                reconcile(&hop.custodian, &live, &hop.set).await;
            }
            assert!(reload(&hop.admin, &hop.track).await.is_none());
            hop.log.heal();
            tenant.restart();
            let hop = &tenant.hop;
            hop.custodian.sweep(Some(&hop.home), tenant.held.clone()).await.unwrap();
            assert!(hop.records().await.is_empty(), "{mode:?} {back}");
            hop.delete_namespace().await;
            hop.assert_namespace_goes().await;
            tenant.end().await;
        }
    }
}

#[tokio::test]
async fn a_sweep_reports_what_it_may_not_finish() {
    let hop = Hop::applied("hop-left").await;
    let swept = hop.custodian.sweep(Some(&hop.home), []).await.unwrap();
    assert!(swept.finished.is_empty() && swept.left.is_empty(), "the parent lives: {swept:?}");
    let tracks = Api::<GitTrack>::namespaced(hop.admin.clone(), &hop.home);
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tracks.patch("track", &PatchParams::default(), &patch).await.unwrap();
    delete(&hop.admin, &hop.track).await;
    hop.nothing_changed(async || {
        let swept = hop.custodian.sweep(None, []).await.unwrap();
        let ours = swept.left.iter().find(|l| l.parent.uid.as_str() == hop.track.uid().unwrap()).unwrap();
        assert!(ours.words.contains("objects are on record"), "{ours}");
    })
    .await;
    assert_eq!(hop.records().await.len(), 1);
    let roles = Api::<ClusterRole>::all(hop.admin.clone());
    for object in hop.set.iter().rev() {
        remove(&hop.admin, object).await;
    }
    assert!(roles.get_opt(&format!("top-{}", hop.home)).await.unwrap().is_none());
}
