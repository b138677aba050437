//! What happens in a scenario besides the operators, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
};
use kube_custody::sim::{Cluster, Controller, Operation, Trouble};
use serde_json::{Value, json};

use super::{
    coverage::Coverage,
    dice::Dice,
    scenario::{Act, Scenario},
    things::{self, Address, MANAGER},
    wire::{PARENTS, Record},
};
use crate::laws::history::{Request, Verb, What};

/// What others did, as far as the end is judged by it.
#[derive(Debug, Default)]
pub struct Foreign {
    /// Objects of others that carry no mark, by UID.
    pub theirs: BTreeMap<String, Address>,
    /// Objects that others took away, by UID.
    pub taken_away: BTreeSet<String>,
    /// Namespaces and definitions that others deleted, by name.
    pub containers: BTreeSet<String>,
    /// Children that others recreated with our marks, and how often.
    pub recreated: BTreeMap<usize, u32>,
    /// Whether others took marks off, or names.
    pub meddled: bool,
    /// Whether the record was deleted by hand.
    pub record_deleted: bool,
    /// Whether somebody's finalizers are to stay.
    pub held: bool,
}

#[derive(Debug, Default)]
struct State {
    calls: usize,
    next: usize,
    version: usize,
    wants_second: bool,
    wants_restart: bool,
    /// Whether nothing is done by others any more.
    over: bool,
    foreign: Foreign,
    coverage: Coverage,
    /// Calls of the present pass that changed something.
    written: BTreeSet<usize>,
}

/// Does what the scenario says.
pub struct Stagehand {
    pub scenario: Scenario,
    pub cluster: Cluster,
    record: Arc<Record>,
    admin: Client,
    state: Mutex<State>,
}

impl fmt::Debug for Stagehand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stagehand").field("scenario", &self.scenario).finish_non_exhaustive()
    }
}

const HELD: &str = "others.example.com/held";

impl Stagehand {
    pub fn new(scenario: Scenario, cluster: Cluster, record: Arc<Record>) -> Arc<Self> {
        let admin = cluster.client_as("somebody");
        Arc::new(Self { scenario, cluster, record, admin, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn seed(&self) -> u64 {
        self.scenario.seed
    }

    pub fn calls(&self) -> usize {
        self.state().calls
    }

    pub fn version(&self) -> usize {
        self.state().version
    }

    pub fn foreign<R>(&self, look: impl FnOnce(&Foreign) -> R) -> R {
        look(&self.state().foreign)
    }

    pub fn cover(&self, situation: &'static str) {
        self.state().coverage.met(situation);
    }

    pub fn coverage(&self) -> Coverage {
        self.state().coverage.clone()
    }

    pub fn wants_second(&self) -> bool {
        std::mem::take(&mut self.state().wants_second)
    }

    pub fn wants_restart(&self) -> bool {
        std::mem::take(&mut self.state().wants_restart)
    }

    /// Whether everything that was to happen has happened.
    pub fn is_done(&self) -> bool {
        self.state().next == self.scenario.acts.len()
    }

    /// What is to happen before the call that is being made. Returns its number, and what goes wrong with it.
    pub async fn before_call(self: &Arc<Self>, asked: Option<&Request>) -> (usize, Option<Trouble>) {
        let number = {
            let mut state = self.state();
            state.calls += 1;
            state.calls
        };
        let mut trouble = None;
        while let Some(act) = self.due(Some(number)) {
            if let Act::Trouble(planned) = act {
                trouble = Some(planned);
                self.cover_trouble(planned, asked);
            } else {
                // In a task of its own: the caller may die meanwhile.
                let hand = Arc::clone(self);
                let _ = tokio::spawn(async move { hand.perform(&act).await }).await;
            }
        }
        (number, trouble)
    }

    fn cover_trouble(&self, trouble: Trouble, asked: Option<&Request>) {
        let mut state = self.state();
        let writes = asked.is_some_and(|asked| !matches!(asked.verb, Verb::Get | Verb::List | Verb::Watch));
        state.coverage.met(match trouble {
            Trouble::CrashBefore => "crash before a call",
            Trouble::CrashAfter => "crash after a call",
            Trouble::AnswerLost if writes => "answer to a write lost",
            Trouble::AnswerLost => "answer to a read lost",
            Trouble::Unsent => "call not sent",
            Trouble::Repeated => "call repeated",
            Trouble::TimedOut(_) => "time-out",
            Trouble::Stale(_) => "stale: an old list",
            Trouble::Refused(403) => "refused with 403",
            Trouble::Refused(404) => "refused with 404",
            Trouble::Refused(409) => "refused with 409",
            Trouble::Refused(429) => "refused with 429",
            _ => "refused with 5xx",
        });
        if matches!(trouble, Trouble::CrashBefore | Trouble::CrashAfter) && !state.written.is_empty() {
            state.coverage.met("intermediate: a crash between two writes of a pass");
        }
    }

    /// The operator was told what became of a request.
    pub fn told(&self, request: &Request, code: u16) {
        if !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) && code < 300 {
            let mut state = self.state();
            let calls = state.calls;
            state.written.insert(calls);
        }
    }

    /// A pass begins.
    pub fn pass(&self) {
        self.state().written.clear();
    }

    /// Does the next thing that is to happen, whatever call it was planned for. Whether there was any.
    pub async fn skip_to_next(&self) -> bool {
        let Some(act) = self.due(None) else { return false };
        if !matches!(act, Act::Trouble(_)) {
            self.perform(&act).await;
        }
        true
    }

    fn due(&self, call: Option<usize>) -> Option<Act> {
        let mut state = self.state();
        let (at, act) = self.scenario.acts.get(state.next)?;
        if state.over || call.is_some_and(|call| *at > call) {
            return None;
        }
        state.next += 1;
        Some(act.clone())
    }

    /// The controllers take some steps.
    pub async fn let_others_work(&self, dice: &mut Dice) {
        for _ in 0..dice.below(self.scenario.setup.pace + 1) {
            self.cluster.step_now();
        }
    }

    /// Other tasks go first.
    pub async fn let_others_go_first(&self, dice: &mut Dice) {
        for _ in 0..dice.below(self.scenario.setup.yields + 1) {
            tokio::task::yield_now().await;
        }
    }

    /// Nothing goes wrong from now on, and what was held is let go of.
    pub async fn make_peace(&self) {
        self.state().over = true;
        for controller in [Controller::GarbageCollector, Controller::Namespaces, Controller::Definitions] {
            self.cluster.resume(controller);
        }
        self.cluster.permit_all();
        self.cluster.lift("others");
        self.show_groups();
        self.cluster.refresh_discovery();
        if self.scenario.setup.held_for_good {
            return;
        }
        self.release().await;
    }

    fn show_groups(&self) {
        for group in ["rbac.authorization.k8s.io", "model.example.com", "faros.pusher.com"] {
            self.cluster.show_group(group);
        }
    }

    async fn get(&self, address: &Address) -> Option<DynamicObject> {
        address.api(&self.admin).get_opt(&address.name).await.ok().flatten()
    }

    async fn merge(&self, address: &Address, patch: Value) -> bool {
        let params = PatchParams { field_manager: Some("somebody".into()), ..PatchParams::default() };
        address.api(&self.admin).patch(&address.name, &params, &Patch::Merge(patch)).await.is_ok()
    }

    async fn create(&self, address: &Address, object: &Value) -> Option<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object.clone()).ok()?;
        address.api(&self.admin).create(&PostParams::default(), &object).await.ok()
    }

    /// Deletes an object as somebody else.
    async fn take_away(&self, address: &Address, policy: PropagationPolicy) -> Option<DynamicObject> {
        let live = self.get(address).await?;
        let uid = live.uid().unwrap_or_default();
        let params = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        address.api(&self.admin).delete(&address.name, &params).await.ok()?;
        let mut state = self.state();
        state.foreign.taken_away.insert(uid);
        // What was left for its sake may have lost its marks before.
        state.foreign.meddled |= self.scenario.children.iter().any(|child| child.keep);
        drop(state);
        Some(live)
    }

    fn theirs(&self, live: &DynamicObject, address: &Address) {
        self.state().foreign.theirs.insert(live.uid().unwrap_or_default(), address.clone());
    }

    async fn perform(&self, act: &Act) {
        let child = |number: &usize| self.scenario.children[*number].address();
        let done = match act {
            Act::Trouble(_) => true,
            Act::Upgrade => {
                self.state().version += 1;
                true
            }
            Act::DeleteParent(parent, policy) => {
                let address = Address::new(things::TRACK, Some("home"), things::parent_name(*parent));
                let params = DeleteParams { propagation_policy: Some(policy_of(policy)), ..DeleteParams::default() };
                address.api(&self.admin).delete(&address.name, &params).await.is_ok()
            }
            Act::CloseWatches => {
                self.cluster.close_watches();
                true
            }
            Act::Compact => {
                self.cluster.close_watches();
                self.cluster.compact();
                self.cover("stale: a watch with a gap");
                true
            }
            Act::RestartCollector => {
                self.cluster.restart(Controller::GarbageCollector);
                true
            }
            Act::Pause(controller) => {
                self.cluster.pause(*controller);
                true
            }
            Act::Resume => {
                for controller in [Controller::GarbageCollector, Controller::Namespaces, Controller::Definitions] {
                    self.cluster.resume(controller);
                }
                true
            }
            Act::SecondOperator => {
                self.state().wants_second = true;
                true
            }
            Act::Restart => {
                self.state().wants_restart = true;
                true
            }
            Act::DeleteChild(number) => self.take_away(&child(number), PropagationPolicy::Background).await.is_some(),
            Act::Recreate(number, marked) => self.recreate(*number, *marked).await,
            Act::TakeName(number) => {
                let address = child(number);
                let created = self.create(&address, &address.object()).await;
                if let Some(live) = &created {
                    self.theirs(live, &address);
                    self.state().foreign.meddled = true;
                }
                created.is_some()
            }
            Act::StripLabel(number) => {
                let patch = json!({"metadata": {"labels": {format!("{MANAGER}/parent-uid"): null}}});
                let done = self.merge(&child(number), patch).await;
                self.state().foreign.meddled |= done;
                done
            }
            Act::StripPointer(number) => {
                let patch = json!({"metadata": {"annotations": {format!("{MANAGER}/back-pointer"): null}}});
                let done = self.merge(&child(number), patch).await;
                self.state().foreign.meddled |= done;
                done
            }
            Act::Hold(number) => self.hold(&child(number)).await,
            Act::Release => {
                self.release().await;
                true
            }
            Act::Touch(number) => {
                let calls = self.calls();
                let patch = json!({"metadata": {"annotations": {"others.example.com/note": calls.to_string()}}});
                self.merge(&child(number), patch).await
            }
            Act::Copy(number) => self.copy(*number).await,
            Act::Keep(number) => {
                let patch = json!({"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}});
                self.merge(&child(number), patch).await
            }
            Act::Refer(number) => self.refer(&child(number)).await,
            Act::DeleteNamespace(place) => {
                let name = things::namespace(*place);
                self.delete_container(&Address::new(things::NAMESPACE, None, name)).await
            }
            Act::DeleteDefinition(name) => self.delete_container(&Address::new(things::DEFINITION, None, name)).await,
            Act::DeleteRecord => self.delete_record().await,
            Act::DeleteProxies(policy) => self.delete_proxies(policy_of(policy)).await,
            Act::Deny(plural) => {
                let plural = *plural;
                self.cluster.deny("others", move |review| {
                    let denied = review.operation == Operation::Delete && review.plural == plural;
                    denied.then(|| "not now".to_owned())
                });
                true
            }
            Act::Forbid(verb, plural) => {
                let (verb, plural) = (*verb, *plural);
                self.cluster.forbid(move |user, asked, target| {
                    user == "operator" && asked.as_str() == verb && target.plural == plural
                });
                true
            }
            Act::Lift => {
                self.cluster.permit_all();
                self.cluster.lift("others");
                true
            }
            Act::HideGroup(group) => {
                self.cluster.hide_group(group);
                true
            }
            Act::ShowGroups => {
                self.show_groups();
                true
            }
        };
        if done {
            self.cover(name_of(act));
        }
    }

    async fn hold(&self, address: &Address) -> bool {
        let Some(live) = self.get(address).await else { return false };
        if live.metadata.deletion_timestamp.is_some() || live.finalizers().iter().any(|name| name == HELD) {
            return false;
        }
        let finalizers: Vec<&str> = live.finalizers().iter().map(String::as_str).chain([HELD]).collect();
        let patch = json!({"metadata": {"resourceVersion": live.resource_version(), "finalizers": finalizers}});
        let held = self.merge(address, patch).await;
        self.state().foreign.held |= held;
        held
    }

    /// Lets go of everything that is held.
    async fn release(&self) {
        for of in things::ALL {
            let listed = Address::new(of, None, "").api(&self.admin).list(&ListParams::default()).await;
            for live in listed.into_iter().flatten() {
                let finalizers: Vec<&String> = live.finalizers().iter().filter(|name| *name != HELD).collect();
                if finalizers.len() < live.finalizers().len() {
                    let patch = json!({"metadata": {"finalizers": finalizers}});
                    self.merge(&Address::new(of, live.namespace().as_deref(), &live.name_any()), patch).await;
                }
            }
        }
    }

    async fn recreate(&self, number: usize, marked: bool) -> bool {
        let address = self.scenario.children[number].address();
        let before = self.calls();
        let Some(old) = self.take_away(&address, PropagationPolicy::Background).await else { return false };
        let mut object = address.object();
        if marked {
            object["metadata"]["labels"] = json!(old.labels());
            object["metadata"]["annotations"] = json!(old.annotations());
        }
        let Some(live) = self.create(&address, &object).await else { return false };
        let ours = live.annotations().contains_key(&format!("{MANAGER}/back-pointer"));
        if ours {
            *self.state().foreign.recreated.entry(number).or_default() += 1;
        } else {
            self.theirs(&live, &address);
            self.state().foreign.meddled = true;
        }
        if self.calls() == before {
            self.cover("unobserved: gone and there again between two calls");
        }
        true
    }

    async fn copy(&self, number: usize) -> bool {
        let mut address = self.scenario.children[number].address();
        let Some(old) = self.get(&address).await else { return false };
        if matches!(address.kind, "CustomResourceDefinition") {
            return false;
        }
        address.name = format!("{}-copy", address.name);
        let mut object = address.object();
        object["metadata"]["labels"] = json!(old.labels());
        object["metadata"]["annotations"] = json!(old.annotations());
        let Some(live) = self.create(&address, &object).await else { return false };
        self.theirs(&live, &address);
        true
    }

    async fn refer(&self, address: &Address) -> bool {
        let Some(live) = self.get(address).await else { return false };
        let mut owner = Address::new(things::ROLE, None, "theirs");
        if live.namespace().is_some() && live.name_any().ends_with('1') {
            owner = Address::new(things::MAP, live.namespace().as_deref(), "theirs");
        }
        let found = match self.get(&owner).await {
            Some(found) => found,
            None => {
                let Some(created) = self.create(&owner, &owner.object()).await else { return false };
                self.theirs(&created, &owner);
                created
            }
        };
        let reference = OwnerReference {
            api_version: owner.api_version(),
            kind: owner.kind.to_owned(),
            name: owner.name.clone(),
            uid: found.uid().unwrap_or_default(),
            ..OwnerReference::default()
        };
        let references: Vec<&OwnerReference> = live.owner_references().iter().chain([&reference]).collect();
        let patch = json!({"metadata": {"resourceVersion": live.resource_version(), "ownerReferences": references}});
        self.merge(address, patch).await
    }

    async fn delete_container(&self, address: &Address) -> bool {
        let done = self.take_away(address, PropagationPolicy::Background).await.is_some();
        if done {
            self.state().foreign.containers.insert(address.name.clone());
        }
        done
    }

    async fn delete_record(&self) -> bool {
        let maps = Address::new(things::MAP, Some("home"), "");
        let listed = maps.api(&self.admin).list(&ListParams::default()).await;
        let mut done = false;
        // Of all parents, and noted before and after: what is stored meanwhile may be removed or not.
        self.record.note(0..PARENTS, &What::Robbed);
        for live in listed.into_iter().flatten() {
            if live.name_any().starts_with("inventory-") {
                let address = Address { name: live.name_any(), ..maps.clone() };
                self.merge(&address, json!({"metadata": {"finalizers": null}})).await;
                self.take_away(&address, PropagationPolicy::Background).await;
                done = true;
            }
        }
        self.record.note(0..PARENTS, &What::Robbed);
        self.state().foreign.record_deleted |= done;
        done
    }

    async fn delete_proxies(&self, policy: PropagationPolicy) -> bool {
        let mut done = false;
        for of in [things::OWNER, things::CLUSTER_OWNER] {
            let listed = Address::new(of, None, "").api(&self.admin).list(&ListParams::default()).await;
            for live in listed.into_iter().flatten() {
                let address = Address::new(of, live.namespace().as_deref(), &live.name_any());
                done |= self.take_away(&address, policy.clone()).await.is_some();
            }
        }
        done
    }
}

fn policy_of(name: &str) -> PropagationPolicy {
    match name {
        "Foreground" => PropagationPolicy::Foreground,
        "Orphan" => PropagationPolicy::Orphan,
        _ => PropagationPolicy::Background,
    }
}

fn name_of(act: &Act) -> &'static str {
    match act {
        Act::Upgrade => "the desired set changed",
        Act::DeleteParent(..) => "the parent deleted",
        Act::Trouble(_) => "trouble",
        Act::CloseWatches => "watches closed",
        Act::Compact => "history compacted",
        Act::RestartCollector => "garbage collector restarted",
        Act::Pause(_) => "a controller paused",
        Act::Resume => "controllers resumed",
        Act::SecondOperator => "a second operator",
        Act::Restart => "operator replaced",
        Act::DeleteChild(_) => "a child deleted by others",
        Act::Recreate(_, true) => "a child recreated with our marks",
        Act::Recreate(_, false) => "a child replaced by somebody's",
        Act::TakeName(_) => "a child's name taken",
        Act::StripLabel(_) => "a label stripped",
        Act::StripPointer(_) => "a back-pointer stripped",
        Act::Hold(_) => "a foreign finalizer added",
        Act::Release => "foreign finalizers released",
        Act::Touch(_) => "a child written by others",
        Act::Copy(_) => "a child copied with its marks",
        Act::Keep(_) => "a child marked to be kept",
        Act::Refer(_) => "a child referred to a foreign owner",
        Act::DeleteNamespace(super::scenario::Place::Home) => "the parent's namespace deleted",
        Act::DeleteNamespace(_) => "a namespace with children deleted",
        Act::DeleteDefinition(_) => "a definition deleted",
        Act::DeleteRecord => "the inventory deleted by hand",
        Act::DeleteProxies(_) => "proxies deleted",
        Act::Deny(_) => "deletions denied by admission",
        Act::Forbid(..) => "a right taken away",
        Act::Lift => "denials lifted",
        Act::HideGroup(_) => "a group missing from discovery",
        Act::ShowGroups => "groups shown again",
    }
}
