//! The end of a manager: everything that carries its keys is let go of, or torn down, whatever was going on, and nothing of
//! anybody else's is touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use control_plane::{Plane, audit::CutMode, fixtures};
use futures::{StreamExt, future, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Discovery, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    discovery::verbs,
};
use kube_custody::{
    custodian::{
        Adoption, Custodian, Desired, Hold, Phase,
        uninstall::{Breadth, Part, Stage, Uninstall, Uninstalled},
    },
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner},
    },
};
use serde_json::{Value, json};

use crate::world::*;

const PARENTS: usize = 50;
const NAMESPACES: usize = 10;
const OTHER: &str = "other.example.com";

/// What the parents have, one of each.
const HELD_CHILD: usize = 0;
const ADOPTED: usize = 1;
const KEPT: usize = 2;
const MISSING: usize = 3;
const RESTORED: usize = 4;
const ABANDONED: usize = 5;
const HOLDING: usize = 6;

/// A cluster with two managers that use the same kinds.
struct Cluster {
    plane: Plane,
    admin: Client,
    tracks: Vec<GitTrack>,
    /// Objects of nobody's and of the other manager's, as they were.
    foreign: BTreeMap<String, DynamicObject>,
    /// Everything that the manager's parents have, as it was.
    children: BTreeMap<String, DynamicObject>,
}

fn home(index: usize) -> String {
    format!("home-{}", index % NAMESPACES)
}

fn away(index: usize) -> String {
    format!("away-{}", index % NAMESPACES)
}

fn name(index: usize) -> String {
    format!("track-{index}")
}

fn set(index: usize) -> Vec<DynamicObject> {
    let name = name(index);
    vec![
        config_map(&home(index), &name, &[]),
        config_map(&away(index), &name, &[&format!("/namespaces/{}/ConfigMap/{name}", home(index))]),
        cluster_role(&name, &[]),
    ]
}

fn custodian(client: Client, manager: &str) -> Custodian<GitTrack> {
    Custodian::<GitTrack>::builder(client, manager)
        .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
        .adoption(Adoption::IfUnowned)
        .hold(|parent| match parent.id.name() == name(HOLDING) {
            true => vec![id(&format!("ConfigMap {}/credentials", home(HOLDING)))],
            false => Vec::new(),
        })
        .slice(Duration::from_millis(300))
        .build()
        .unwrap()
}

/// What the operator asks for.
fn desired(index: usize) -> Desired {
    let given_up = |object: &DynamicObject| index == ABANDONED && object.namespace() == Some(away(index));
    let mut desired = Desired::from(set(index).into_iter().filter(|o| !given_up(o)).collect::<Vec<_>>());
    if index == KEPT {
        desired.keep(id(&format!("ConfigMap {}/{}", away(index), name(index))));
    }
    desired
}

async fn apply(custodian: &Custodian<GitTrack>, client: &Client, track: &GitTrack, index: usize) {
    let what = format!("{} is applied", name(index));
    fixtures::eventually_ok(what, async || {
        // What is given up later is there at first.
        let desired = if index == ABANDONED { Desired::from(set(index)) } else { desired(index) };
        let track = reload(client, track).await.unwrap();
        let outcome = custodian.reconcile(&track, async |_| Ok::<_, std::io::Error>(desired)).await;
        if outcome.phase == Phase::Applied { Ok(()) } else { Err(format!("{outcome:#?}")) }
    })
    .await;
}

/// Every object of every kind that is served, by a key that names it.
async fn all_objects(client: &Client) -> BTreeMap<String, DynamicObject> {
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let kinds = discovery.groups().flat_map(|group| group.recommended_resources());
    let listed =
        stream::iter(kinds.filter(|(_, can)| can.supports_operation(verbs::LIST)).map(|(kind, _)| async move {
            let api = Api::<DynamicObject>::all_with(client.clone(), &kind);
            let list = api.list(&ListParams::default()).await.unwrap();
            list.items.into_iter().map(move |object| (kind.clone(), object)).collect::<Vec<_>>()
        }));
    let objects = listed.buffer_unordered(8).flat_map(stream::iter).map(|(kind, object)| {
        let key =
            format!("{}/{} {}/{}", kind.group, kind.plural, object.namespace().unwrap_or_default(), object.name_any());
        (key, object)
    });
    objects.collect().await
}

/// What an object says of itself, without what the API server writes down about writers.
fn metadata(object: &DynamicObject) -> Value {
    let mut meta = serde_json::to_value(&object.metadata).unwrap();
    meta.as_object_mut().unwrap().remove("managedFields");
    meta
}

fn carries(object: &DynamicObject, manager: &str) -> bool {
    metadata(object).to_string().contains(&format!("{manager}/"))
}

impl Cluster {
    async fn new() -> Self {
        let plane = Plane::builder().start().await.unwrap();
        let admin = plane.client();
        install(&admin).await;
        for index in 0..NAMESPACES {
            for namespace_name in [home(index), away(index)] {
                create(&admin, &namespace(&namespace_name)).await;
            }
        }
        let ours = custodian(admin.clone(), MANAGER);
        let mut credentials = config_map(&home(HOLDING), "credentials", &[]);
        credentials.metadata.finalizers = Some(vec!["elsewhere.example.com/own".into()]);
        create(&admin, &credentials).await;
        create(&admin, &{
            let mut adopted = config_map(&home(ADOPTED), &name(ADOPTED), &[]);
            adopted.metadata.labels = Some(BTreeMap::from([("theirs".into(), "1".into())]));
            adopted
        })
        .await;
        let tracks = stream::iter((0..PARENTS).map(|index| {
            let (admin, ours) = (admin.clone(), ours.clone());
            async move {
                let track = parent(&admin, &home(index), &name(index)).await;
                apply(&ours, &admin, &track, index).await;
                track
            }
        }));
        let tracks = tracks.buffered(8).collect().await;
        let mut cluster = Self { plane, admin, tracks, foreign: BTreeMap::new(), children: BTreeMap::new() };
        cluster.trouble(&ours).await;
        cluster.others().await;
        for (key, object) in all_objects(&cluster.admin).await {
            let label = object.labels().get("test").is_some();
            let children = ["/configmaps ", "/clusterroles "].iter().any(|k| key.contains(k)) && key.contains("track-");
            if label || carries(&object, OTHER) {
                cluster.foreign.insert(key, object);
            } else if children {
                cluster.children.insert(key, object);
            }
        }
        assert!(cluster.foreign.len() > 10 && cluster.children.len() > 3 * PARENTS - 5);
        cluster
    }

    /// Parents in every state that holds them up.
    async fn trouble(&mut self, ours: &Custodian<GitTrack>) {
        let tracks = |index| Api::<GitTrack>::namespaced(self.admin.clone(), &home(index));
        let force = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let params = PatchParams::default();
        let held = json!({"metadata": {"finalizers": ["elsewhere.example.com/held"]}});
        patch(&self.admin, &set(HELD_CHILD)[0], held).await;

        let maps = Api::<ConfigMap>::namespaced(self.admin.clone(), &home(MISSING));
        let uid = self.tracks[MISSING].uid().unwrap();
        let records = ListParams::default().labels(&format!("{MANAGER}/parent-uid={uid},{MANAGER}/inventory"));
        for record in maps.list(&records).await.unwrap() {
            maps.patch(&record.name_any(), &params, &force).await.unwrap();
            maps.delete(&record.name_any(), &Default::default()).await.unwrap();
        }
        let noted = json!({"metadata": {"annotations": {format!("{MANAGER}/group-kinds"): null}}});
        tracks(MISSING).patch(&name(MISSING), &params, &Patch::Merge(noted)).await.unwrap();
        let live = reload(&self.admin, &self.tracks[MISSING]).await.unwrap();
        let outcome = reconcile(ours, &live, &set(MISSING)).await;
        assert!(matches!(outcome.phase, Phase::Held(Hold::InventoryMissing { .. })), "{outcome:#?}");

        tracks(RESTORED).patch(&name(RESTORED), &params, &force).await.unwrap();
        delete(&self.admin, &self.tracks[RESTORED]).await;
        self.tracks[RESTORED] = parent(&self.admin, &home(RESTORED), &name(RESTORED)).await;
        let outcome = reconcile(ours, &self.tracks[RESTORED], &set(RESTORED)).await;
        assert!(matches!(outcome.phase, Phase::Held(Hold::Restored { .. })), "{outcome:#?}");

        let given_up = id(&format!("ConfigMap {}/{}", away(ABANDONED), name(ABANDONED)));
        ours.abandon(&self.tracks[ABANDONED], &given_up).await.unwrap();
    }

    /// What belongs to others, with copies of the manager's marks among it.
    async fn others(&self) {
        create(&self.admin, &namespace("others")).await;
        let other = Custodian::<GitTrack>::builder(self.admin.clone(), OTHER)
            .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
            .ownership(OwnershipPolicy::ClusterWide)
            .build()
            .unwrap();
        for name in ["one", "two"] {
            let track = parent(&self.admin, "others", name).await;
            let set = [config_map("others", name, &[]), config_map(&away(0), name, &[]), cluster_role(name, &[])];
            settle(&other, &self.admin, &track, &set).await;
        }
        let mut fresh = GitTrack::new("never-reconciled", GitTrackSpec { path: "/".into() });
        fresh.metadata.labels = Some(BTreeMap::from([("test".into(), "foreign".into())]));
        Api::<GitTrack>::namespaced(self.admin.clone(), "others").create(&PostParams::default(), &fresh).await.unwrap();
        let mut plain = config_map(&home(0), "foreign", &[]);
        plain.metadata.labels = Some(BTreeMap::from([("test".into(), "foreign".into())]));
        plain.metadata.finalizers = Some(vec!["elsewhere.example.com/own".into()]);
        let plain = create(&self.admin, &plain).await;
        let mut owned = config_map(&home(0), "owned", &[]);
        owned.metadata.labels = plain.metadata.labels.clone();
        owned.metadata.owner_references = Some(fixtures::from(json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "foreign", "uid": plain.uid()},
        ])));
        create(&self.admin, &owned).await;

        // A clone of a child, with everything that was on it.
        let mut copy = live(&self.admin, &set(7)[1]).await.unwrap();
        copy.metadata = serde_json::from_value(json!({
            "name": "a-copy", "namespace": copy.namespace(), "annotations": copy.annotations(),
            "labels": copy.labels(), "ownerReferences": copy.owner_references(),
        }))
        .unwrap();
        copy.metadata.labels.as_mut().unwrap().insert("theirs".into(), "1".into());
        create(&self.admin, &copy).await;
    }

    fn custodian(&self) -> Custodian<GitTrack> {
        custodian(self.admin.clone(), MANAGER)
    }

    /// Uninstalls, and is cut off at several calls, each time by another process.
    async fn cut_off(&self, options: &Uninstall, at: &[u64]) {
        for (index, k) in at.iter().enumerate() {
            let (client, log) = self.plane.audited("admin");
            log.cut_at(*k, if index % 2 == 0 { CutMode::After } else { CutMode::Before });
            let custodian = custodian(client, MANAGER);
            let whole = std::pin::pin!(custodian.uninstall(options));
            let cut = std::pin::pin!(log.cut_off());
            match future::select(whole, cut).await {
                future::Either::Left((whole, _)) => assert!(log.is_cut(), "{k} calls are too many: {whole:#?}"),
                future::Either::Right(_) => {}
            }
        }
    }

    /// No object carries a key of the manager, and what is not its own is as it was.
    async fn assert_nothing_left(&self) -> BTreeMap<String, DynamicObject> {
        let all = all_objects(&self.admin).await;
        let marked: Vec<_> =
            all.iter().filter(|(_, o)| carries(o, MANAGER)).map(|(key, o)| (key, metadata(o))).collect();
        assert!(marked.is_empty(), "{marked:#?}");
        let uids: BTreeSet<_> = all.values().filter_map(ResourceExt::uid).collect();
        for (key, object) in &all {
            for owner in object.owner_references().iter().filter(|o| o.kind.ends_with("GitTrackOwner")) {
                assert!(uids.contains(&owner.uid), "{key} refers to a proxy that is gone");
            }
        }
        for (key, before) in &self.foreign {
            let after = all.get(key).unwrap_or_else(|| panic!("{key} is gone"));
            assert_eq!(after.resource_version(), before.resource_version(), "{key}: {:#?}", metadata(after));
        }
        all
    }
}

/// What an object is apart from anything that the manager wrote.
fn own_part(object: &DynamicObject) -> Value {
    let ours = |key: &String| key.starts_with(&format!("{MANAGER}/"));
    let keys = |map: &BTreeMap<String, String>| {
        map.iter().filter(|(k, _)| !ours(k)).map(|(k, v)| (k.clone(), v.clone())).collect::<BTreeMap<_, _>>()
    };
    let finalizers: Vec<_> = object.finalizers().iter().filter(|f| !ours(f)).collect();
    let owners: Vec<_> = object.owner_references().iter().filter(|o| !o.kind.ends_with("GitTrackOwner")).collect();
    json!({
        "uid": object.uid(), "deleting": object.metadata.deletion_timestamp, "data": object.data,
        "labels": keys(object.labels()), "annotations": keys(object.annotations()),
        "finalizers": finalizers, "owners": owners,
    })
}

fn left<'a>(done: &'a Uninstalled, name: &str) -> &'a str {
    let left = done.left.iter().find(|l| l.id.name() == name);
    left.map_or_else(|| panic!("{name} is not named: {done:#?}"), |l| &l.words)
}

#[tokio::test]
async fn c51_released_is_released_although_it_is_cut_off_and_nothing_foreign_is_touched() {
    let cluster = Cluster::new().await;
    let options = Uninstall::release().within(Duration::from_secs(300)).reason("for a test");
    cluster.cut_off(&options, &[5, 120, 300, 500, 900]).await;

    // Begun, and not finished: the operator holds, and puts nothing back.
    let ours = cluster.custodian();
    let mut holding = 0;
    for track in &cluster.tracks {
        let live = reload(&cluster.admin, track).await.unwrap();
        if live.finalizers().iter().any(|f| f.ends_with("/applied")) {
            let outcome = reconcile(&ours, &live, &[]).await;
            holding += usize::from(matches!(outcome.phase, Phase::Held(Hold::Releasing { .. })));
        }
    }
    assert!(holding > 0);

    let done = ours.uninstall(&options).await.unwrap();
    assert!(done.is_proven(), "{done:#?}");
    let after = cluster.assert_nothing_left().await;
    for (key, before) in &cluster.children {
        let after = after.get(key).unwrap_or_else(|| panic!("{key} is gone"));
        assert_eq!(own_part(after), own_part(before), "{key}");
    }
    for track in &cluster.tracks {
        let live = reload(&cluster.admin, track).await.unwrap();
        assert!(live.metadata.deletion_timestamp.is_none() && live.uid() == track.uid());
    }
    let credentials = live(&cluster.admin, &config_map(&home(HOLDING), "credentials", &[])).await.unwrap();
    assert_eq!(credentials.finalizers(), ["elsewhere.example.com/own"]);
    assert!(exists(&cluster.admin, &config_map(&away(7), "a-copy", &[])).await);
    let again = ours.uninstall(&options).await.unwrap();
    assert!(again.is_proven() && again.parents.is_empty() && again.cleared.is_empty(), "{again:#?}");

    // An operator that was not stopped takes a parent up again: it is named.
    let live = reload(&cluster.admin, &cluster.tracks[9]).await.unwrap();
    reconcile(&ours, &live, &[config_map(&home(9), "late", &[])]).await;
    let scan = ours.scan(Breadth::Labelled).await;
    let parts: BTreeSet<_> = scan.findings.iter().map(|f| f.part).collect();
    assert_eq!(parts, BTreeSet::from([Part::Parent, Part::Proxy, Part::Record, Part::Child]), "{scan:#?}");
    assert!(!scan.is_complete() && scan.unseen.is_empty());
    cluster.plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn torn_down_is_torn_down_parents_first_then_the_operator_then_the_definitions() {
    let cluster = Cluster::new().await;
    create(&cluster.admin, &namespace("gittrack-system")).await;
    let operator = config_map("gittrack-system", "stands-for-the-operator", &[]);
    create(&cluster.admin, &operator).await;
    let options = Uninstall::tear_down()
        .operator([id("ConfigMap gittrack-system/stands-for-the-operator"), id("Namespace gittrack-system")])
        .definitions(true)
        .within(Duration::from_secs(8));

    // The operator goes on all the while.
    let running = tokio::spawn({
        let (ours, admin, tracks) = (cluster.custodian(), cluster.admin.clone(), cluster.tracks.clone());
        async move {
            loop {
                for (index, track) in tracks.iter().enumerate() {
                    if let Some(live) = reload(&admin, track).await {
                        ours.reconcile(&live, async |_| Ok::<_, std::io::Error>(desired(index))).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    cluster.cut_off(&options, &[5, 60, 200, 500]).await;
    let ours = cluster.custodian();
    let done = fixtures::eventually_ok("only what somebody has to decide is left", async || {
        let done = ours.uninstall(&options).await.unwrap();
        let parents = done.left.iter().filter(|l| l.stage == Stage::Parents).count();
        if parents == 3 { Ok(done) } else { Err(format!("{done:#?}")) }
    })
    .await;
    assert!(left(&done, &name(HELD_CHILD)).contains("elsewhere.example.com/held"), "{done:#?}");
    assert!(left(&done, &name(MISSING)).contains("inventory is missing"), "{done:#?}");
    assert!(left(&done, &name(RESTORED)).contains("re-link"), "{done:#?}");
    assert!(exists(&cluster.admin, &operator).await, "the operator goes after its parents");
    running.abort();

    patch(&cluster.admin, &set(HELD_CHILD)[0], json!({"metadata": {"finalizers": null}})).await;
    let restored = reload(&cluster.admin, &cluster.tracks[RESTORED]).await.unwrap();
    assert!(ours.relink(&restored).await.unwrap().is_complete());
    fixtures::eventually_ok("only the parent without a record is left", async || {
        let done = ours.uninstall(&options).await.unwrap();
        let parents: Vec<_> = done.left.iter().filter(|l| l.stage == Stage::Parents).map(|l| l.id.name()).collect();
        if parents == [name(MISSING)] { Ok(()) } else { Err(format!("{done:#?}")) }
    })
    .await;
    let done = ours.uninstall(&Uninstall::release().within(Duration::from_secs(60))).await.unwrap();
    assert!(reload(&cluster.admin, &cluster.tracks[MISSING]).await.is_none(), "{done:#?}");

    let options = options.within(Duration::from_secs(60));
    let done = ours.uninstall(&options).await.unwrap();
    let in_use: Vec<_> = done.left.iter().map(|l| (l.stage, l.id.name())).collect();
    assert_eq!(
        in_use,
        [
            (Stage::Definitions, "clustergittrackowners.faros.pusher.com"),
            (Stage::Definitions, "gittrackowners.faros.pusher.com"),
            (Stage::Definitions, "gittracks.faros.pusher.com"),
        ],
        "another manager's: {done:#?}"
    );
    assert!(done.unseen.is_empty() && !exists(&cluster.admin, &operator).await, "{done:#?}");
    let after = cluster.assert_nothing_left().await;
    let expected = |index: usize, place: usize| {
        let object = &set(index)[place];
        let kind = if place == 2 { "rbac.authorization.k8s.io/clusterroles" } else { "/configmaps" };
        format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any())
    };
    // Whether what was given up keeps what it needs is not this scenario's question.
    let open = expected(ABANDONED, 0);
    let stays: BTreeSet<_> = cluster.children.keys().filter(|key| **key != open && after.contains_key(*key)).collect();
    let mut kept = BTreeSet::from([expected(ADOPTED, 0), expected(KEPT, 1), expected(KEPT, 0), expected(ABANDONED, 1)]);
    kept.extend((0..3).map(|place| expected(MISSING, place)));
    assert_eq!(stays, kept.iter().collect());

    // The other manager goes as well, and with it the definitions.
    let other = Custodian::<GitTrack>::builder(cluster.admin.clone(), OTHER)
        .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
        .build()
        .unwrap();
    let options = Uninstall::tear_down().definitions(true).unclaimed(true).within(Duration::from_secs(60));
    let done = other.uninstall(&options).await.unwrap();
    assert!(done.is_proven() && done.deleted.len() == 3, "{done:#?}");
    assert!(other.uninstall(&options).await.unwrap().is_proven(), "again, when even the kinds are gone");
    cluster.plane.shutdown().await.unwrap();
}
