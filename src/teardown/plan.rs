//! The sequencer used alone: which objects, in which order, and what becomes of each.
//!
//! Decides what is on the plan; asks nothing. What the cluster shows comes in through [`Plan::inspect`], and the rows of
//! a plan are read off the very [`Course`] that a run carries out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::Client;
use kube_core::{DynamicObject, TypeMeta};

use super::{
    course::{Course, Progress},
    inside::Insight,
    live::{Authority, Live},
    look::{Look, Looked},
    policy,
    proof::{Block, Case, Reason, Subject},
    report::{Kept, Report},
    run::{Run, Slice, Underway},
};
use crate::{
    discovery::Resolver,
    graph::{self, Declared, DependencyGraph, GraphBuilder, ManifestSet, Node, Rules, Waiver},
    inventory::{InUsePolicy, Requirement},
    object::{GroupKind, LiveRef, ObjectId, ResourceKind, Scope, Uid},
};

/// Why there is no plan, or why a run did not reach its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The objects have no order, one of them is named twice, or an edge starts outside of the set.
    #[error("{source}")]
    Order {
        /// Which objects, and why.
        source: graph::Error,
    },
    /// An object to be kept is not among the objects.
    #[error("{id} is to be kept, but is not in the set: leave it out, or add it with its UID")]
    KeepUnknown {
        /// Which object.
        id: ObjectId,
    },
    /// The time given to a run is over, or what is left is held for good.
    #[error("{} of {} objects are not done with: {}", report.unfinished(), report.len(), report.first_blocker())]
    Incomplete {
        /// What became of each object, and what blocks the rest.
        report: Box<Report>,
    },
}

/// Objects that are to go in dependency order, for an operator that keeps its own records.
///
/// The caller vouches for each object by its UID: another incarnation under the same name is never touched. Foreign
/// marks on an object that ask to keep it are honoured all the same, because every object is looked at before its DELETE.
///
/// Nothing is sent before [`Plan::run`], [`Plan::slice`] or [`Plan::inspect`].
///
/// # Example
/// ```no_run
/// # async fn example(client: kube_client::Client, records: Vec<kube_custody::object::LiveRef>) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use kube_custody::{graph::Rules, teardown::Teardown};
///
/// let database = "ConfigMap shop/database".parse()?;
/// let frontend = "ConfigMap shop/frontend".parse()?;
/// let plan = Teardown::new(records)
///     .edges([(frontend, database)]) // the frontend depends on the database, so it goes first
///     .rules(Rules::standard())
///     .selector("app=shop") // an aid for lists and watches, never a claim
///     .plan()?;
/// println!("{}", plan.tree());
/// let report = plan.run(&client).timeout(Duration::from_secs(300)).progress(|event| println!("{event:?}")).await?;
/// println!("{} objects gone", report.gone.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Teardown {
    objects: Vec<LiveRef>,
    edges: Vec<(ObjectId, ObjectId)>,
    declared: Vec<Declared>,
    manifests: Vec<DynamicObject>,
    kinds: BTreeMap<GroupKind, ResourceKind>,
    rules: Rules,
    keep: BTreeSet<ObjectId>,
    selector: Option<String>,
    grace_periods: BTreeMap<ObjectId, u32>,
    in_use: InUsePolicy,
    in_use_of: BTreeMap<ObjectId, InUsePolicy>,
    scan: BTreeSet<GroupKind>,
    waived: Vec<(ObjectId, ObjectId)>,
}

impl Teardown {
    /// These objects, each as the incarnation that was recorded. No rules and no edges yet.
    pub fn new(objects: impl IntoIterator<Item = LiveRef>) -> Self {
        Self { objects: objects.into_iter().collect(), ..Self::default() }
    }

    /// Adds required edges: the first object of each pair depends on the second, and goes before it. The second may be
    /// outside of the set; then nothing waits for it.
    pub fn edges(mut self, edges: impl IntoIterator<Item = (ObjectId, ObjectId)>) -> Self {
        self.edges.extend(edges);
        self
    }

    /// Adds required edges that were read from annotations, with the key that declared each.
    pub fn declared(mut self, edges: impl IntoIterator<Item = Declared>) -> Self {
        self.declared.extend(edges);
        self
    }

    /// Sets the rules that infer further edges. They see the manifests given, and of other objects the identity alone.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Says that the first object need not go before the second, whatever rules find. A declared edge holds all the same.
    pub fn waive(mut self, from: ObjectId, to: ObjectId) -> Self {
        self.waived.push((from, to));
        self
    }

    /// Gives the rules something to read. Of objects outside of the set, they read roles that bindings of the set name
    /// ([`Rule::context`](graph::Rule::context)).
    pub fn manifests(mut self, manifests: impl IntoIterator<Item = DynamicObject>) -> Self {
        self.manifests.extend(manifests);
        self
    }

    /// Says how kinds are served, so that discovery need not be asked for them.
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = ResourceKind>) -> Self {
        self.kinds.extend(kinds.into_iter().map(|kind| (kind.group_kind(), kind)));
        self
    }

    /// Leaves an object in the cluster, and with it what it requires, its Namespace and the definition of its kind.
    pub fn keep(mut self, id: ObjectId) -> Self {
        self.keep.insert(id);
        self
    }

    /// Sets what happens to Namespaces and CustomResourceDefinitions that something outside of the set still uses when their turn
    /// comes. [`InUsePolicy::Hold`] unless set.
    ///
    /// A CustomResourceDefinition is in use by every object of its kind; a Namespace by Pods and PersistentVolumeClaims that
    /// are not in the set and that no object of the set controls, directly or through others, and by objects of the kinds given to
    /// [`scan`](Self::scan).
    ///
    /// # Permissions
    /// `list` on the defined kind (everywhere) and `get` on the definition; `list` on `pods` and `persistentvolumeclaims` in the Namespace,
    /// and `get` on what controls them. What may not be read holds the container, and the report names the rule.
    pub fn in_use(mut self, policy: InUsePolicy) -> Self {
        self.in_use = policy;
        self
    }

    /// [`in_use`](Self::in_use) for one object.
    pub fn in_use_of(mut self, id: ObjectId, policy: InUsePolicy) -> Self {
        self.in_use_of.insert(id, policy);
        self
    }

    /// Further kinds whose objects use the Namespace that they are in.
    ///
    /// # Permissions
    /// `list` on each of them in the Namespace.
    pub fn scan(mut self, kinds: impl IntoIterator<Item = GroupKind>) -> Self {
        self.scan.extend(kinds);
        self
    }

    /// Sets the grace period of one object's DELETE, in seconds.
    pub fn grace_period(mut self, id: ObjectId, seconds: u32) -> Self {
        self.grace_periods.insert(id, seconds);
        self
    }

    /// Selects lists and watches by label. An aid only: an object that the selector does not select is asked for by
    /// itself.
    pub fn selector(mut self, labels: impl Into<String>) -> Self {
        self.selector = Some(labels.into());
        self
    }

    /// Puts the objects into an order.
    ///
    /// # Errors
    /// [`Error::Order`] if declared edges form a cycle or start outside of the set, or if an object is named twice;
    /// [`Error::KeepUnknown`] if an object to be kept is not in the set.
    pub fn plan(self) -> Result<Plan, Error> {
        let order = |source| Error::Order { source };
        let mut builder = GraphBuilder::with_capacity(self.objects.len(), self.edges.len());
        for object in &self.objects {
            builder.add(object.id.clone()).map_err(order)?;
        }
        if let Some(id) = self.keep.iter().find(|id| builder.slot(id).is_none()) {
            return Err(Error::KeepUnknown { id: id.clone() });
        }
        let by_caller = builder.reason(Requirement::Required { declared_by: "api".to_owned() });
        for (from, to) in &self.edges {
            let Some(slot) = builder.slot(from) else {
                return Err(order(graph::Error::UnknownObject { from: from.clone(), to: to.clone() }));
            };
            builder.depend_on_id_because(slot, to, by_caller);
        }
        for edge in &self.declared {
            builder.declare(edge).map_err(order)?;
        }
        self.infer(&mut builder);
        for (from, to) in &self.waived {
            if let Some(slot) = builder.slot(from) {
                builder.waive_from(slot, Waiver::To(to.clone()), graph::annotations::API);
            }
        }
        let graph = builder.build().map_err(order)?;
        let uids = self.objects.into_iter().filter_map(|object| Some((graph.node(&object.id)?, object.uid))).collect();
        Ok(Plan {
            uids,
            keep: self.keep.iter().filter_map(|id| graph.node(id)).collect(),
            grace_periods: self.grace_periods.iter().filter_map(|(id, s)| Some((graph.node(id)?, *s))).collect(),
            in_use_of: self.in_use_of.iter().filter_map(|(id, policy)| Some((graph.node(id)?, *policy))).collect(),
            in_use: self.in_use,
            scan: self.scan,
            graph: Arc::new(graph),
            kinds: self.kinds,
            selector: self.selector,
            looked: None,
        })
    }

    /// Lets the rules find edges, from manifests where there are any and from identities otherwise.
    fn infer(&self, builder: &mut GraphBuilder) {
        if self.rules.iter().len() == 0 {
            return;
        }
        let mut known: BTreeMap<ObjectId, DynamicObject> = BTreeMap::new();
        for manifest in &self.manifests {
            if let Ok(id) = ObjectId::of(manifest) {
                known.insert(id, manifest.clone());
            }
        }
        let mut set: BTreeMap<&ObjectId, DynamicObject> = BTreeMap::new();
        for object in &self.objects {
            let manifest = known.remove(&object.id).unwrap_or_else(|| bare(&object.id));
            set.insert(&object.id, manifest);
        }
        // What is left is not in the set, and can only be context.
        let set = ManifestSet::new(set.iter().map(|(id, manifest)| (*id, manifest))).context(&known);
        builder.infer(&self.rules, &set.kinds(self.kinds.values().cloned()));
    }
}

/// An object of which the identity alone is known.
fn bare(id: &ObjectId) -> DynamicObject {
    // The version is no part of an identity; rules match by group and kind.
    let api_version = if id.group().is_empty() { "v1".to_owned() } else { format!("{}/v1", id.group()) };
    DynamicObject {
        types: Some(TypeMeta { api_version, kind: id.kind().to_owned() }),
        metadata: ObjectMeta {
            name: Some(id.name().to_owned()),
            namespace: id.namespace().map(ToOwned::to_owned),
            ..ObjectMeta::default()
        },
        data: serde_json::Value::Null,
    }
}

/// What becomes of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is deleted once everything that depends on it is gone; if it is gone or terminating already, that is waited
    /// for and nothing is sent.
    Delete,
    /// It stays.
    Keep {
        /// What needs it, if it is not kept by a decision or mark of its own.
        needed_by: Option<ObjectId>,
        /// The foreign marks on it that ask for it, in words.
        markers: Vec<String>,
    },
    /// Nothing can be done about it.
    Blocked(Block),
}

/// One object of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Which object.
    pub id: ObjectId,
    /// Which incarnation.
    pub uid: Option<Uid>,
    /// What becomes of it.
    pub verdict: Verdict,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Delete => write!(f, "delete {}", self.id),
            Verdict::Keep { needed_by: Some(by), .. } => write!(f, "keep {}, because {by} is kept", self.id),
            Verdict::Keep { markers, .. } if !markers.is_empty() => {
                write!(f, "keep {}, because of {}", self.id, markers.join(", "))
            }
            Verdict::Keep { .. } => write!(f, "keep {}", self.id),
            Verdict::Blocked(block) => write!(f, "blocked {}: {}", self.id, block),
        }
    }
}

impl Course {
    /// What becomes of each object as far as is known now, in the order of deletion.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let order = self.graph().deletion_order();
        order.into_iter().filter_map(|node| self.row(node)).collect()
    }

    fn row(&self, node: Node) -> Option<Row> {
        let case = self.case(node)?;
        let verdict = match self.progress_of(node) {
            Some(Progress::Blocked(block)) => Verdict::Blocked(block.clone()),
            _ if case.is_kept() => {
                let Kept { needed_by, markers, .. } = Kept::of(self, node, case);
                Verdict::Keep { needed_by, markers }
            }
            _ => Verdict::Delete,
        };
        Some(Row { id: case.subject().id.clone(), uid: case.subject().uid.clone(), verdict })
    }
}

/// Objects in deletion order, ready to be shown and carried out.
#[derive(Clone, Debug)]
pub struct Plan {
    graph: Arc<DependencyGraph>,
    uids: BTreeMap<Node, Uid>,
    keep: BTreeSet<Node>,
    grace_periods: BTreeMap<Node, u32>,
    in_use: InUsePolicy,
    in_use_of: BTreeMap<Node, InUsePolicy>,
    scan: BTreeSet<GroupKind>,
    kinds: BTreeMap<GroupKind, ResourceKind>,
    selector: Option<String>,
    looked: Option<Looked>,
}

impl Plan {
    /// The objects and the edges between them.
    #[must_use]
    pub fn graph(&self) -> &DependencyGraph {
        &self.graph
    }

    /// What becomes of each object, in the order of deletion, as far as is known: foreign marks and kinds that are not
    /// served show after [`inspect`](Self::inspect) only.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.course().rows()
    }

    /// What waits for what, as indented text, followed by what is not deleted and why.
    #[must_use]
    pub fn tree(&self) -> impl fmt::Display + '_ {
        PlanTree(self)
    }

    /// The graph in Graphviz' language.
    #[must_use]
    pub fn dot(&self) -> impl fmt::Display + '_ {
        self.graph.dot()
    }

    /// The graph as a Mermaid flow chart.
    #[must_use]
    pub fn mermaid(&self) -> impl fmt::Display + '_ {
        self.graph.mermaid()
    }

    /// Looks at the cluster, so that [`rows`](Self::rows) know of foreign marks: a few paged metadata lists, no more
    /// requests than there are objects, and no writes. What a list does not show is asked for during the run.
    pub async fn inspect(mut self, client: &Client) -> Self {
        self.look(client, &Resolver::new(client.clone())).await;
        self
    }

    pub(super) async fn look(&mut self, client: &Client, resolver: &Resolver) {
        let objects = self.graph.nodes().map(|node| self.graph.id(node).clone()).collect();
        let look = Look { client, resolver, kinds: &self.kinds, selector: self.selector.as_deref() };
        self.looked = Some(look.at(objects).await);
    }

    pub(super) fn is_looked_at(&self) -> bool {
        self.looked.is_some()
    }

    pub(super) fn selector(&self) -> Option<&str> {
        self.selector.as_deref()
    }

    pub(super) fn take_looked(&mut self) -> Looked {
        self.looked.take().unwrap_or_default()
    }

    /// Where to look inside containers.
    pub(super) fn insight(&self) -> Insight {
        Insight { members: self.uids.values().cloned().collect(), scan: self.scan.clone(), ..Insight::default() }
    }

    /// The plan as it is carried out.
    pub(super) fn course(&self) -> Course {
        let authority = Arc::new(Authority::Caller);
        let nothing = Looked::default();
        let looked = self.looked.as_ref().unwrap_or(&nothing);
        let mut cases = BTreeMap::new();
        let mut held = Vec::new();
        for (node, uid) in &self.uids {
            let id = self.graph.id(*node);
            let kind = id.group_kind();
            let found = looked.kinds.get(&kind);
            let resource = found.map(|found| &found.resource).or_else(|| self.kinds.get(&kind)).cloned();
            if let Some(Err(error)) = resource.as_ref().map(|resource| id.check_scope(resource.scope)) {
                held.push((*node, Block::said(Reason::Unknown, error.to_string())));
            }
            let mut subject = Subject::new(id.clone(), resource.unwrap_or_else(|| unresolved(id)));
            subject.defined_by_crd = found.is_some_and(|found| found.defined_by_crd);
            subject.uid = Some(uid.clone());
            subject.keep = self.keep.contains(node);
            subject.in_use = self.in_use_of.get(node).copied().unwrap_or(self.in_use);
            subject.propagation = policy::propagation(id, !self.graph.dependencies(*node).is_empty());
            subject.grace_period = self.grace_periods.get(node).copied();
            let live: Option<Live> = looked.live.get(id).cloned();
            cases.insert(*node, Case::new(subject, Arc::clone(&authority), live));
        }
        let mut course = Course::new(Arc::clone(&self.graph), cases);
        held.into_iter().for_each(|(node, block)| course.hold(node, block));
        course
    }

    /// Carries the plan out, until every object is done with.
    pub fn run<'a>(self, client: &Client) -> Run<'a> {
        Run::new(self, client.clone())
    }

    /// Starts carrying the plan out in slices, for a reconciler that keeps what is under way between its passes.
    pub async fn start(self, client: &Client) -> Underway {
        Underway::new(self, client.clone()).await
    }

    /// Carries the plan out for one slice of a reconcile: at most for `budget`, and then until the requests that were
    /// sent are answered. Keeps nothing: the next pass makes its plan anew and asks the cluster where it stands.
    pub async fn slice(self, client: &Client, budget: std::time::Duration) -> Slice {
        self.start(client).await.slice(budget).await
    }
}

struct PlanTree<'a>(&'a Plan);

impl fmt::Display for PlanTree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.graph.tree())?;
        let rows = self.0.rows();
        rows.iter().filter(|row| row.verdict != Verdict::Delete).try_for_each(|row| writeln!(f, "{row}"))
    }
}

/// How to ask for an object whose kind could not be resolved: by a version that can't exist, so that the answer is
/// always "resolve the kind again".
fn unresolved(id: &ObjectId) -> ResourceKind {
    let scope = if id.namespace().is_some() { Scope::Namespaced } else { Scope::Cluster };
    ResourceKind::new(id.group(), "-", id.kind(), &id.kind().to_lowercase(), scope)
}

#[cfg(test)]
mod tests;
