//! The end of a manager: taking everything off that carries its keys, or tearing everything down.
//!
//! [`Custodian::uninstall`](super::Custodian::uninstall) does it for all parents of the custodian's kind, in one of two
//! modes:
//!
//! - [`Uninstall::release`]: parents and children stay, and nothing in the cluster carries a key of the manager any more.
//!   The decision to keep the children is recorded on every parent's inventory first, so that a deletion in the middle
//!   keeps them too; then the children lose their marks and references, then the proxies go, then records and
//!   finalizers.
//! - [`Uninstall::tear_down`]: parents are deleted, and their finalizers do their work; then the operator's own objects
//!   that were named go, then the definitions, each only if nothing of its kind is left.
//!
//! Every step is derived from what is there, so it may be cut off anywhere and called again, by another process as well.
//! It needs no controller: a command that runs once is enough. The operator should be stopped before a release: it would
//! take its parents up again (while a parent is being released it holds with
//! [`Hold::Releasing`](super::Hold::Releasing), and afterwards the report names every parent that was taken up). A
//! tear-down may run beside it.
//!
//! [`Custodian::scan`](super::Custodian::scan) lists what still carries the manager's keys and changes nothing.
//! [`Custodian::leftover_proxies`](super::Custodian::leftover_proxies) and
//! [`Custodian::drain`](super::Custodian::drain) are for single cases.

mod drain;
mod parents;
mod proxies;
mod release;
mod scan;
mod tear_down;
mod traces;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use kube_core::Resource;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use self::{
    drain::{Drain, Drained, Service, Terminating},
    proxies::LeftProxy,
    scan::{Breadth, Scan, Unseen},
    traces::{Behind, Finding, Part, Traces},
};
use self::{
    parents::{Roster, Subject},
    release::{Extent, Stuck},
    scan::parent_resource,
    traces::Parents,
};
use super::{Custodian, Error, Inner, target::Reach};
use crate::object::{LiveRef, ObjectId, ParentRef, ResourceKind};

/// Parents that are dealt with at the same time.
const AT_ONCE: usize = 8;

/// What becomes of the parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Release,
    TearDown,
}

/// How to uninstall.
#[derive(Clone, Debug)]
#[must_use]
pub struct Uninstall {
    mode: Mode,
    within: Duration,
    reason: String,
    operator: Vec<ObjectId>,
    definitions: bool,
    unclaimed: bool,
}

impl Uninstall {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            within: Duration::from_secs(600),
            reason: "the manager is being uninstalled".into(),
            operator: Vec::new(),
            definitions: false,
            unclaimed: false,
        }
    }

    /// Takes everything off, and deletes nothing but proxies and records.
    pub fn release() -> Self {
        Self::new(Mode::Release)
    }

    /// Deletes the parents, with everything that their policies do not keep.
    pub fn tear_down() -> Self {
        Self::new(Mode::TearDown)
    }

    /// Sets how long one call may take. Ten minutes unless set; what is not done by then is reported, and the next call
    /// goes on.
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Sets the reason that is recorded with the decision to keep the children, for people.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Names the operator's own objects (its Deployment, ServiceAccount, roles and bindings). A tear-down deletes them, in
    /// dependency order, once no parent is left; a release leaves them alone.
    ///
    /// Do not name what gives this very process its rights.
    pub fn operator(mut self, objects: impl IntoIterator<Item = ObjectId>) -> Self {
        self.operator.extend(objects);
        self
    }

    /// Sets whether a tear-down ends with the CustomResourceDefinitions of the parent kind and of the proxies. Off unless
    /// set. One of which any object is left, be it another manager's, stays and is reported. An object that is made
    /// between that look and the DELETE goes with its definition.
    pub fn definitions(mut self, definitions: bool) -> Self {
        self.definitions = definitions;
        self
    }

    /// Sets whether a tear-down also deletes parents that nobody has custody of, as those made while the operator was
    /// stopped. Off unless set: they may be another manager's.
    pub fn unclaimed(mut self, unclaimed: bool) -> Self {
        self.unclaimed = unclaimed;
        self
    }
}

/// At which step something was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// A parent and what is on record for it.
    Parents,
    /// What carries keys beside that.
    Traces,
    /// Proxy owners on no record.
    Proxies,
    /// The operator's own objects.
    Operator,
    /// CustomResourceDefinitions.
    Definitions,
}

/// Something that is left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Left {
    /// At which step.
    pub stage: Stage,
    /// Which object.
    pub id: ObjectId,
    /// Why, in words.
    pub words: String,
}

impl Left {
    fn new(stage: Stage, id: &ObjectId, words: impl Into<String>) -> Self {
        Self { stage, id: id.clone(), words: words.into() }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.words)
    }
}

/// What an uninstall came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uninstalled {
    /// Parents that were released, or that are gone, by this call.
    pub parents: Vec<ParentRef>,
    /// Objects that keys were taken off of which no record spoke: copies, held objects, and what was given up earlier.
    pub cleared: Vec<LiveRef>,
    /// What was deleted beside parents and what is theirs.
    pub deleted: Vec<ObjectId>,
    /// What is left and why, in order.
    pub left: Vec<Left>,
    /// What could not be looked at: keys may be left there.
    pub unseen: Vec<Unseen>,
}

impl Uninstalled {
    /// Whether nothing is left, as far as could be looked.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether it is proven that nothing is left.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.is_complete() && self.unseen.is_empty()
    }
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Uninstalls the manager, for all parents of kind `K`; see the [module](self). Call it again until
    /// [`Uninstalled::is_complete`].
    ///
    /// # Guarantees
    /// What another manager or another parent kind of the same manager has is left alone, and so is everything that
    /// others wrote to an object. Of keys under the manager's domain only those go that the crate writes; others are the
    /// author's, and reported. A parent lets go of its finalizers only when everything on its record is done with, and
    /// the record says everything (or, where it is missing or damaged, a complete scan does). A parent that cannot be let
    /// go of keeps everything that is its own, and stops nothing else.
    ///
    /// # Caveats
    /// Where this cluster is also a [target](crate::custodian::Target) of a custodian elsewhere with the same manager domain,
    /// what that one has here is left alone. Objects whose back-pointer somebody took off do not say so: of those, the label is
    /// taken off.
    ///
    /// # Permissions
    /// Meant for an administrator: what the operator itself has, `list` on everything, `patch` on whatever carries keys,
    /// `delete` on parents for a tear-down and on what is named.
    ///
    /// # Errors
    /// [`Error`] if the parents or the records could not be listed. Nothing was changed then.
    pub async fn uninstall(&self, options: &Uninstall) -> Result<Uninstalled, Error> {
        let run = Run {
            custodian: self,
            inner: &self.inner,
            kind: parent_resource::<K>(),
            options,
            deadline: Instant::now() + options.within,
        };
        match options.mode {
            Mode::Release => run.release().await,
            Mode::TearDown => run.tear_down().await,
        }
    }
}

/// One call.
struct Run<'a, K> {
    custodian: &'a Custodian<K>,
    inner: &'a Inner,
    kind: ResourceKind,
    options: &'a Uninstall,
    deadline: Instant,
}

impl<K> Run<'_, K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    async fn release(&self) -> Result<Uninstalled, Error> {
        let roster = self.inner.roster(&self.kind).await?;
        let mut done = Uninstalled::default();
        done.unseen.extend(roster.unlisted());
        let stuck = self.loosen_all(&roster.subjects, Extent::Children).await;
        let scan = self.inner.scan(&self.kind, Breadth::Everything).await;
        let mut known = self.known(&roster, &scan);
        known.staying.extend(stuck.keys().map(|parent| (parent.uid.clone(), parent.id.clone())));
        let open = self.clear_all(&known, &scan, &mut done).await;

        let rest: Vec<_> = roster.subjects.iter().filter(|t| !stuck.contains_key(&t.parent)).cloned().collect();
        let clean = |subject: &Subject| {
            scan.is_complete() && !open.iter().any(|f| f.parents.iter().any(|p| p.uid == subject.parent.uid))
        };
        let mut left = stuck;
        left.extend(self.part_with_all(&rest, clean, &mut done).await);
        known.staying.extend(left.keys().map(|parent| (parent.uid.clone(), parent.id.clone())));
        done.left.extend(left.into_iter().map(|(parent, words)| Left::new(Stage::Parents, &parent.id, words)));
        self.remove_proxies(&known, &roster.free, &scan, &open, &mut done).await;
        self.free_records(&known, &scan, &mut done).await;
        self.look_again(&known, &mut done).await;
        Ok(done)
    }

    /// Lets go of what the subjects have. Returns those that stay, and why.
    async fn loosen_all(&self, subjects: &[Subject], extent: Extent) -> BTreeMap<ParentRef, String> {
        let steps = subjects.iter().map(|subject| {
            async move {
                let loosened = async {
                    let at = self.custodian.whereabouts(subject).await?;
                    self.inner.loosen_parent(&at, subject, &self.options.reason, extent, self.deadline).await
                };
                loosened.await.err().map(|Stuck(words)| (subject.parent.clone(), words))
            }
            .boxed()
        });
        let steps: Vec<_> = steps.collect();
        stream::iter(steps).buffer_unordered(AT_ONCE).filter_map(|stuck| async { stuck }).collect().await
    }

    /// The last steps of the subjects. Returns those that stay, and why.
    async fn part_with_all(
        &self,
        subjects: &[Subject],
        clean: impl Fn(&Subject) -> bool,
        done: &mut Uninstalled,
    ) -> BTreeMap<ParentRef, String> {
        let steps = subjects.iter().map(|subject| {
            let clean = clean(subject);
            async move { (subject, self.part_with(subject, clean).await) }.boxed()
        });
        let steps: Vec<_> = steps.collect();
        let mut left = BTreeMap::new();
        let mut ended = stream::iter(steps).buffer_unordered(AT_ONCE);
        while let Some((subject, end)) = ended.next().await {
            match end {
                Ok(words) if words.is_empty() => done.parents.push(subject.parent.clone()),
                Ok(words) => drop(left.insert(subject.parent.clone(), words.join("; "))),
                Err(Stuck(words)) => drop(left.insert(subject.parent.clone(), words)),
            }
        }
        done.parents.sort();
        left
    }

    async fn part_with(&self, subject: &Subject, clean: bool) -> Result<Vec<String>, Stuck> {
        let (at, reason) = (self.custodian.whereabouts(subject).await?, &self.options.reason);
        let loosened = self.inner.loosen_parent(&at, subject, reason, Extent::Everything, self.deadline).await?;
        match &loosened.unproven {
            // A scan looks at the home cluster.
            Some(words) if !clean || at.reach == Reach::Remote => {
                Err(Stuck(format!("{words}; and a scan could not show that nothing else carries its marks")))
            }
            _ => self.inner.part_with(subject, loosened).await,
        }
    }

    /// Which parents are done with, if all goes well.
    fn known(&self, roster: &Roster, scan: &Scan) -> Parents {
        let kind = self.kind.group_kind();
        let parents = scan.of(Part::Parent).map(|f| &f.object);
        let behind = scan.findings.iter().filter_map(|f| match &f.behind {
            Behind::Lives(parent) => Some(parent),
            _ => None,
        });
        let others = parents.chain(behind).filter(|parent| parent.id.group_kind() != kind);
        let others = others.map(|parent| (parent.uid.clone(), parent.id.clone()));
        Parents {
            staying: BTreeMap::new(),
            others: others.chain(roster.others.clone()).collect(),
            done: roster.subjects.iter().map(|t| (t.parent.uid.clone(), t.parent.id.clone())).collect(),
            complete: scan.is_complete(),
            kind,
        }
    }

    /// Takes keys off children, held objects and copies whose parents are done with. Returns what keeps them.
    async fn clear_all<'s>(&self, known: &Parents, scan: &'s Scan, done: &mut Uninstalled) -> Vec<&'s Finding> {
        let manager = &self.inner.manager;
        // A parent can be a child as well.
        let parents = scan.of(Part::Parent).filter(|f| f.traces.is_child(manager));
        let (clear, mut open): (Vec<_>, Vec<_>) =
            scan.of(Part::Child).chain(parents).partition(|f| known.may_clear(manager, f).is_ok());
        let steps = clear.into_iter().map(|finding| async move { (finding, self.clear(finding).await) }.boxed());
        let steps: Vec<_> = steps.collect();
        let mut cleared = stream::iter(steps).buffer_unordered(AT_ONCE);
        while let Some((finding, cleared)) = cleared.next().await {
            match cleared {
                Ok(()) => done.cleared.push(finding.object.clone()),
                Err(words) => {
                    done.left.push(Left::new(Stage::Traces, &finding.object.id, words));
                    open.push(finding);
                }
            }
        }
        done.cleared.sort();
        open
    }

    async fn clear(&self, finding: &Finding) -> Result<(), String> {
        let (object, references, manager) = (&finding.object, &finding.traces.references, &self.inner.manager);
        self.inner
            .clear(&self.inner.home, &finding.resource, &object.id, &object.uid, references, |key| {
                !manager.is_parents_key(key)
            })
            .await
    }

    /// Takes the keys off stored objects of parents that are done with, which no record could be read from.
    async fn free_records(&self, known: &Parents, scan: &Scan, done: &mut Uninstalled) {
        // One that stays may have a record under another label than its own.
        let all_done = known.staying.is_empty();
        for finding in scan.of(Part::Record).filter(|_| all_done) {
            if known.may_clear(&self.inner.manager, finding).is_err() {
                continue;
            }
            match self.clear(finding).await {
                Ok(()) => {}
                Err(words) => done.left.push(Left::new(Stage::Traces, &finding.object.id, words)),
            }
        }
    }

    /// Looks at everything once more, and reports what is left.
    async fn look_again(&self, known: &Parents, done: &mut Uninstalled) {
        let scan = self.inner.scan(&self.kind, Breadth::Everything).await;
        let known = Parents { complete: scan.is_complete(), ..known.clone() };
        let reported: BTreeSet<_> = done.left.iter().map(|l| l.id.clone()).collect();
        let manager = &self.inner.manager;
        for finding in scan.findings.iter().filter(|f| !reported.contains(&f.object.id)) {
            let id = &finding.object.id;
            let stage = match finding.part {
                Part::Parent => Stage::Parents,
                Part::Proxy => Stage::Proxies,
                _ => Stage::Traces,
            };
            if known.is_of_others(manager, finding) {
                continue;
            }
            let own: Vec<_> = finding.traces.unknown(manager).cloned().collect();
            let words = if !own.is_empty() {
                format!(
                    "it carries {}, which the crate does not write: only the operator's author can tell",
                    own.join(", ")
                )
            } else if finding.part == Part::Parent && id.group_kind() == self.kind.group_kind() {
                "it was taken up again, or made, meanwhile: stop the operator, and call again".to_owned()
            } else {
                finding.to_string()
            };
            done.left.push(Left::new(stage, id, words));
        }
        done.left.sort();
        done.unseen.extend(scan.unseen);
    }
}
