use std::fmt;

use super::Illegal;
use crate::object::{self, GroupKind, LiveRef, ObjectId, ParentRef, Scope};

/// Why an owner reference, a mark or a proxy was refused. Nothing has been changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kubernetes would not honour the reference.
    #[error(transparent)]
    Illegal(Illegal),
    /// The owner's metadata names no object of the kind it was read as.
    #[error("cannot refer to an owner of kind {kind}: its metadata does not name one")]
    OwnerIdentity {
        /// The kind it was read as.
        kind: GroupKind,
        /// What is wrong with the identity.
        #[source]
        source: Box<object::Error>,
    },
    /// Metadata came without a UID, so it was not read from the API server.
    #[error("{object} has no UID: pass the metadata of the live object, as answered by a GET or by its create")]
    NotLive {
        /// The object.
        object: ObjectId,
    },
    /// The owner's kind was resolved without a version; the API server refuses such a reference.
    #[error("{owner} cannot be an owner: its kind was resolved without a served version; resolve it through discovery")]
    NoServedVersion {
        /// The owner.
        owner: ObjectId,
    },
    /// The owner is being deleted: a reference to it would hand the child to the garbage collector.
    #[error("{owner} cannot become an owner: it is being deleted; wait until it is gone and refer to its successor")]
    OwnerTerminating {
        /// The owner.
        owner: LiveRef,
    },
    /// The metadata belongs to another object than the one named.
    #[error("the metadata passed for {child} is that of {found:?}: pass the metadata of the object itself")]
    WrongObject {
        /// The object named.
        child: ObjectId,
        /// Namespace and name in the metadata.
        found: String,
    },
    /// The child has a controller already; the API server accepts one.
    #[error(
        "{owner} cannot become the controller of {child}: {other} is; refer to it without `controller`, \
         or relink if that is an earlier incarnation of the owner"
    )]
    SecondController {
        /// The child.
        child: ObjectId,
        /// The owner that asked.
        owner: LiveRef,
        /// The reference that is in the way: kind, name and UID.
        other: String,
    },
    /// A manifest carries a key of the manager.
    #[error("the manifest of {object} carries {place} {key:?}, which only the operator may write: remove it")]
    ReservedKey {
        /// The object.
        object: ObjectId,
        /// Where the key stands.
        place: KeyPlace,
        /// The key.
        key: String,
    },
    /// The parent's UID cannot be the value of a label.
    #[error("the UID of {parent} cannot be a label value (63 letters, digits, '-', '_' and '.'): read the parent live")]
    UidNotALabel {
        /// The parent.
        parent: LiveRef,
    },
    /// Nobody asks for an object that is to be handed over.
    #[error("{object} is not asked for by another parent any more: look at it again")]
    NotWanted {
        /// The object.
        object: ObjectId,
    },
    /// The two kinds given as proxies do not make a pair.
    #[error("{kind} is {found}, but the {wanted} proxy has to be {wanted}: swap the two kinds of the pair")]
    ProxyScope {
        /// The kind.
        kind: GroupKind,
        /// Its scope.
        found: Scope,
        /// The scope it stands for.
        wanted: Scope,
    },
    /// A proxy kind or name breaks a rule of the API server.
    #[error("invalid proxy owner kind {kind}: correct the group, kind and plural that the pair is declared with")]
    ProxyIdentity {
        /// The kind.
        kind: GroupKind,
        /// The rule.
        #[source]
        source: Box<object::Error>,
    },
    /// The desired set holds the parent itself.
    #[error("{parent} is in its own desired set: an object cannot be its own child; take it out")]
    ChildIsParent {
        /// The parent.
        parent: ParentRef,
    },
    /// The desired set holds an object that only the operator makes.
    #[error("{child} is a proxy owner, which only the operator makes: take it out of the desired set")]
    ChildIsProxy {
        /// The object.
        child: ObjectId,
    },
    /// A proxy's spec cannot be read.
    #[error("the spec of proxy owner {proxy:?} is unreadable ({problem}): it is not judged; look at it by hand")]
    ProxySpec {
        /// The proxy's name.
        proxy: String,
        /// What is wrong.
        problem: String,
    },
}

/// Where in an object's metadata a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum KeyPlace {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
    /// `metadata.finalizers`.
    Finalizer,
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::Finalizer => "finalizer",
        })
    }
}
