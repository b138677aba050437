//! # What can go wrong, and the way out
//!
//! Nothing here leads to a guess: what is not proven is unknown, unknown blocks, and the status says what blocks. The
//! conditions are those of [`status`](crate::status).
//!
//! ## An object blocks the deletion
//!
//! | reason | what it means | the way out |
//! |---|---|---|
//! | [`Terminating`](crate::teardown::Reason::Terminating) | accepted, but finalizers keep it; they are listed | whoever serves the finalizer has to work; a dead garbage collector shows here as `foregroundDeletion`. A finalizer that nobody serves any more can be [forced](crate::force), if the operator's author admits it |
//! | [`InUse`](crate::teardown::Reason::InUse) | something outside of the set is in the Namespace, or of the defined kind; it is named | take it away, or choose another [`Builder::in_use`](crate::custodian::Builder::in_use) |
//! | [`UseUnknown`](crate::teardown::Reason::UseUnknown) | whether something else uses it may not be read; the rule is named | grant the rule |
//! | [`Dependents`](crate::teardown::Reason::Dependents) | what depends on it is not gone | look at those |
//! | [`Refused`](crate::teardown::Reason::Refused) | admission refused the DELETE; its words are quoted | lift the policy; it is tried again by itself |
//! | [`Forbidden`](crate::teardown::Reason::Forbidden) | RBAC refused a request | grant the right that the words name |
//! | [`Unknown`](crate::teardown::Reason::Unknown) | no usable answer: an outage, a kind that is not served at present | wait, or bring the API back. A kind whose definition is proven gone does not block |
//! | [`Unproven`](crate::teardown::Reason::Unproven) | it was about to be created; something of that name exists that carries no mark of ours | look at it; `Custodian::abandon` leaves it alone for good |
//! | [`Disowned`](crate::teardown::Reason::Disowned) | it is the recorded incarnation, and the back-pointer was removed or changed | put the annotation back, delete the object by hand, or `abandon` it |
//! | [`Recreated`](crate::teardown::Reason::Recreated) | something recreates it, marks included, as often as it is deleted | stop that, then delete it once by hand, or `abandon` it |
//! | [`NotManaged`](crate::teardown::Reason::NotManaged) | the ownership policy does not let the parent manage it (any more) | widen the policy, or `abandon` it |
//! | [`Damaged`](crate::teardown::Reason::Damaged) | part of the record is unreadable, and what is in it may depend on the object | see below |
//!
//! ## A parent waits for other parents
//!
//! Only with a [`gate`](crate::gate). `DependentsExist`: it is being deleted, and the parents that the condition names depend on it.
//! Delete those too, take its name out of their `dependsOn`, or ask for it not to wait for them (a [request](crate::force), if the
//! operator's author admits it). A dependent of which the condition says that its `dependsOn` cannot be read does not fit its
//! type: repair or delete it. `DependenciesNotMet`: it depends on what is missing, being deleted, not ready, or not to be held up
//! by it; nothing of it is applied or pruned until that changes, and what it has stays.
//!
//! ## The inventory is missing
//!
//! Somebody took the record away by force. Children are looked for by label and back-pointer over every group-kind that was
//! noted on the parent. If each of them could be listed in full, work goes on with what was found; declared edges are lost
//! with the record, those that identities show (Namespace, definition, proxy) are not. If not, the parent is held with
//! [`Hold::InventoryMissing`](crate::custodian::Hold), whose words name what could not be looked at.
//!
//! A record that is there and lacks entries, because somebody edited it or put an older one back, is completed in the same way
//! before a teardown removes anything, from what the watches show and lists of the noted kinds that are not watched. An empty
//! record of a parent that has applied is treated as a missing one.
//!
//! ## The inventory is damaged
//!
//! Readable entries count; unreadable ones are named and left as they are.
//!
//! ## The parent was restored from a backup
//!
//! Its UID is another one than the record's: [`Hold::Restored`](crate::custodian::Hold). Nothing is created, pruned or deleted
//! until [`Custodian::relink`](crate::custodian::Custodian::relink) says that it is the same parent. What is on record and carries
//! a back-pointer to the recorded incarnation is then marked for the new one, whichever incarnation of the object it is; all
//! else is left alone and named. Proxies are replaced by the next reconcile.
//!
//! ## Another cluster answers
//!
//! The record holds the UID of namespace `kube-system`. If the cluster that answers has another, nothing it says is taken as
//! evidence: [`Hold::OtherCluster`](crate::custodian::Hold).
//!
//! ## The target cannot be reached
//!
//! Only with [`Builder::target`](crate::custodian::Builder::target): [`Hold::TargetUnavailable`](crate::custodian::Hold). An outage,
//! credentials that are refused or missing, a hook that fails: the parent waits, tries again, and its words say what
//! for. A cluster that is gone for good is given up with `Custodian::abandon_all`; see [`remote`](super::remote).
//!
//! ## The parent's namespace is deleted
//!
//! The record carries a guard finalizer, and the parent its own: neither goes before the children. The namespace
//! controller deletes the children in that namespace in no order; what is outside of it goes in order. Creates are
//! refused from then on, and the pass ends them.
//!
//! ## A race that Kubernetes leaves open
//!
//! A DELETE that has read the parent before its first finalizer was added can remove it although both requests succeed
//! (kubernetes/kubernetes#77988). The custodian reads the parent again after adding the finalizer and creates nothing before, so
//! the window closes without a trace.
