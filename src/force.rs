//! Requests to force: what somebody asks for on a parent, and how much of it the operator's author admits.
//!
//! A parent that waits for something that never comes can be told to go on, by the annotation
//! [`Manager::force_annotation`](crate::manager::Manager::force_annotation) on the parent:
//!
//! ```json
//! {"uid": "<UID of the parent>",
//!  "reason": "the controller of example.com/legacy was uninstalled in May",
//!  "finalizers": [{"object": "Widget.example.com shop/old", "uid": "<UID of the object>", "finalizer": "example.com/legacy"}],
//!  "abandon":    [{"object": "ConfigMap shop/lost", "uid": "<UID of the object>"}],
//!  "dependents": [{"object": "GitTrack.faros.pusher.com shop/front", "uid": "<UID of the dependent parent>"}]}
//! ```
//!
//! Objects are written as [`ObjectId`] displays them. `finalizers` asks to strip one finalizer of one object that is
//! already terminating, `abandon` to give one object up, and `dependents` not to wait for one parent that depends on this
//! one. Everything is named, with its UID; nothing is meant by omission.
//!
//! Whoever may edit a parent may write such a request, so it is a wish and no order: [`Allowed`] says what of it is admitted,
//! which is nothing unless the author says so. The request names the parent's UID, so that a copy of the parent does not carry
//! it along. It is read strictly: in a text with an unknown field or anything unreadable nothing is admitted.
//!
//! Pure: it knows no cluster. Whether an object is the parent's own is judged by whoever acts on a request.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Deserializer};

use crate::{
    manager::Manager,
    object::{GroupKind, ObjectId, Uid},
};

/// Longest request that is read, in bytes.
const LONGEST: usize = 64 * 1024;
/// Most characters of a reason that are kept.
const REASON: usize = 256;

/// Finalizers that are never stripped, whoever allows it: the API server's and the garbage collector's own. Without them
/// content is left behind that comes back with the container ("zombies"), or that nothing collects.
const NEVER: [&str; 4] = ["customresourcecleanup.apiextensions.k8s.io", "foregroundDeletion", "kubernetes", "orphan"];

/// Why a request cannot be read. Nothing of it is admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is too long.
    #[error("the request to force has {length} bytes: keep it below {LONGEST}")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// It is not a JSON object of the documented form.
    #[error("the request to force cannot be read, so nothing is forced: {problem}")]
    Unreadable {
        /// What is wrong, and where.
        problem: String,
    },
}

/// One incarnation of an object, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Named {
    /// Which object.
    #[serde(deserialize_with = "from_text")]
    pub object: ObjectId,
    /// Which incarnation.
    pub uid: Uid,
}

/// One finalizer of one incarnation of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NamedFinalizer {
    /// Which object.
    #[serde(deserialize_with = "from_text")]
    pub object: ObjectId,
    /// Which incarnation.
    pub uid: Uid,
    /// Which finalizer, by its full name.
    pub finalizer: String,
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectId, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// What somebody asks for on a parent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Request {
    /// The parent that it is about.
    pub uid: Uid,
    /// Why, in the words of whoever asks; cut to a readable length.
    #[serde(default)]
    pub reason: Option<String>,
    /// Finalizers to strip.
    #[serde(default)]
    pub finalizers: BTreeSet<NamedFinalizer>,
    /// Objects to give up.
    #[serde(default)]
    pub abandon: BTreeSet<Named>,
    /// Parents that depend on this one and are not to be waited for.
    #[serde(default)]
    pub dependents: BTreeSet<Named>,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// [`Error`] if it is too long or not of the documented form, unknown fields included.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > LONGEST {
            return Err(Error::TooLong { length: text.len() });
        }
        let mut request: Self = serde_json::from_str(text)
            .map_err(|e| Error::Unreadable { problem: e.to_string().chars().take(REASON).collect() })?;
        request.reason = request.reason.map(|reason| reason.chars().filter(|c| !c.is_control()).take(REASON).collect());
        Ok(request)
    }
}

/// What the operator's author admits of requests to force. Nothing, unless it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Allowed {
    /// Kinds by the name of the finalizer.
    finalizers: BTreeMap<String, BTreeSet<GroupKind>>,
    abandon: BTreeSet<GroupKind>,
    dependents: BTreeSet<GroupKind>,
}

impl Allowed {
    /// Nothing.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Admits that this finalizer is stripped off objects of `kind`. Never admitted are the finalizers of the API server and
    /// the garbage collector, among them the definition's own (`customresourcecleanup.apiextensions.k8s.io`), and those of
    /// the manager itself.
    pub fn finalizer(mut self, finalizer: impl Into<String>, kind: GroupKind) -> Self {
        self.finalizers.entry(finalizer.into()).or_default().insert(kind);
        self
    }

    /// Admits that objects of `kind` are given up.
    pub fn abandon(mut self, kind: GroupKind) -> Self {
        self.abandon.insert(kind);
        self
    }

    /// Admits that parents of `kind` that depend on the one with the request are not waited for.
    pub fn dependents(mut self, kind: GroupKind) -> Self {
        self.dependents.insert(kind);
        self
    }

    /// Whether this finalizer may be stripped off objects of `kind`.
    #[must_use]
    pub fn strips(&self, manager: &Manager, kind: &GroupKind, finalizer: &str) -> bool {
        !is_own(manager, finalizer) && self.finalizers.get(finalizer).is_some_and(|kinds| kinds.contains(kind))
    }

    /// Whether a parent may do without waiting for dependents of `kind`.
    pub(crate) fn passes(&self, kind: &GroupKind) -> bool {
        self.dependents.contains(kind)
    }

    /// What of `request`, found on the parent with this `uid`, is admitted.
    #[must_use]
    pub fn admit(&self, manager: &Manager, uid: &Uid, request: &Request) -> Admitted {
        let mut admitted = Admitted { reason: request.reason.clone(), ..Admitted::default() };
        if request.uid != *uid {
            admitted.refused.push(Refused::OtherParent { named: request.uid.clone() });
            return admitted;
        }
        for wish in &request.finalizers {
            if !self.strips(manager, &wish.object.group_kind(), &wish.finalizer) {
                let (object, finalizer) = (wish.object.clone(), wish.finalizer.clone());
                let never = is_own(manager, &finalizer);
                admitted.refused.push(Refused::Finalizer { object, finalizer, never });
            } else {
                let named = Named { object: wish.object.clone(), uid: wish.uid.clone() };
                admitted.finalizers.entry(named).or_default().insert(wish.finalizer.clone());
            }
        }
        for wish in &request.abandon {
            if self.abandon.contains(&wish.object.group_kind()) {
                admitted.abandon.insert(wish.clone());
            } else {
                admitted.refused.push(Refused::Abandon { object: wish.object.clone() });
            }
        }
        for wish in &request.dependents {
            if self.dependents.contains(&wish.object.group_kind()) {
                admitted.dependents.insert(wish.clone());
            } else {
                admitted.refused.push(Refused::Dependent { object: wish.object.clone() });
            }
        }
        admitted
    }
}

/// Whether a finalizer is one that no list can admit.
fn is_own(manager: &Manager, finalizer: &str) -> bool {
    manager.owns_key(finalizer) || NEVER.contains(&finalizer)
}

/// What of a request is admitted, and what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admitted {
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
    /// Finalizers to strip, by object.
    pub finalizers: BTreeMap<Named, BTreeSet<String>>,
    /// Objects to give up.
    pub abandon: BTreeSet<Named>,
    /// Dependent parents that are not waited for.
    pub dependents: BTreeSet<Named>,
    /// What is not admitted, and why; for the parent's status.
    pub refused: Vec<Refused>,
}

/// A wish that is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The request was written for another parent, or an earlier incarnation of this one.
    OtherParent {
        /// The UID that it names.
        named: Uid,
    },
    /// The finalizer is not on the author's list for that kind.
    Finalizer {
        /// Of which object.
        object: ObjectId,
        /// Which finalizer.
        finalizer: String,
        /// Whether no list could admit it.
        never: bool,
    },
    /// Objects of this kind may not be given up by request.
    Abandon {
        /// Which object.
        object: ObjectId,
    },
    /// Parents of this kind are waited for.
    Dependent {
        /// Which parent.
        object: ObjectId,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherParent { named } => {
                write!(
                    f,
                    "the request to force names the parent UID {named}, which is not this one's: nothing is forced"
                )
            }
            Self::Finalizer { object, finalizer, never: true } => {
                write!(f, "finalizer {finalizer:?} of {object} is never stripped: it ends when what it waits for does")
            }
            Self::Finalizer { object, finalizer, never: false } => {
                write!(f, "finalizer {finalizer:?} of {object} is not stripped: the operator does not allow it")
            }
            Self::Abandon { object } => {
                write!(f, "{object} is not given up: the operator does not allow it by request")
            }
            Self::Dependent { object } => {
                write!(f, "{object} is waited for all the same: the operator does not allow otherwise")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn manager() -> Manager {
        Manager::new("gittrack.example.com").unwrap()
    }

    fn uid(text: &str) -> Uid {
        Uid::new(text).unwrap()
    }

    fn kind(text: &str) -> GroupKind {
        text.parse().unwrap()
    }

    fn request() -> serde_json::Value {
        json!({
            "uid": "p", "reason": "gone for good",
            "finalizers": [{"object": "Widget.example.com shop/old", "uid": "u1", "finalizer": "dead.example.com/x"}],
            "abandon": [{"object": "ConfigMap shop/lost", "uid": "u2"}],
            "dependents": [{"object": "GitTrack.faros.pusher.com shop/front", "uid": "u3"}],
        })
    }

    fn all() -> Allowed {
        Allowed::nothing()
            .finalizer("dead.example.com/x", kind("Widget.example.com"))
            .abandon(kind("ConfigMap"))
            .dependents(kind("GitTrack.faros.pusher.com"))
    }

    #[test]
    fn c38_nothing_is_admitted_unless_the_author_lists_it() {
        let request = Request::parse(&request().to_string()).unwrap();
        let none = Allowed::nothing().admit(&manager(), &uid("p"), &request);
        assert_eq!(
            (none.refused.len(), none.finalizers.len(), none.abandon.len(), none.dependents.len()),
            (3, 0, 0, 0)
        );
        let all = all().admit(&manager(), &uid("p"), &request);
        assert_eq!((all.refused.len(), all.finalizers.len(), all.abandon.len(), all.dependents.len()), (0, 1, 1, 1));
        assert_eq!(all.reason.as_deref(), Some("gone for good"));
        let other_kind = Allowed::nothing().finalizer("dead.example.com/x", kind("ConfigMap"));
        assert!(other_kind.admit(&manager(), &uid("p"), &request).finalizers.is_empty());
    }

    #[test]
    fn a_copied_parent_does_not_carry_the_request() {
        let request = Request::parse(&request().to_string()).unwrap();
        let admitted = all().admit(&manager(), &uid("copy"), &request);
        assert_eq!(admitted.refused, [Refused::OtherParent { named: uid("p") }]);
        assert!(admitted.finalizers.is_empty() && admitted.abandon.is_empty() && admitted.dependents.is_empty());
    }

    #[test]
    fn c18_the_servers_own_finalizers_and_ours_are_never_stripped() {
        let crd = "CustomResourceDefinition.apiextensions.k8s.io";
        for finalizer in
            NEVER.into_iter().map(str::to_owned).chain([manager().finalizer(), manager().proxy_finalizer()])
        {
            let text = json!({"uid": "p", "finalizers": [
                {"object": format!("{crd} widgets.example.com"), "uid": "u", "finalizer": finalizer},
            ]});
            let request = Request::parse(&text.to_string()).unwrap();
            let admitted =
                Allowed::nothing().finalizer(finalizer.as_str(), kind(crd)).admit(&manager(), &uid("p"), &request);
            assert!(matches!(&*admitted.refused, [Refused::Finalizer { never: true, .. }]), "{admitted:?}");
            assert!(admitted.finalizers.is_empty());
        }
    }

    #[test]
    fn what_is_not_of_the_form_is_an_error_that_says_where() {
        let with = |path: &str, value: serde_json::Value| {
            let mut changed = request();
            *changed.pointer_mut(path).unwrap() = value;
            Request::parse(&changed.to_string())
        };
        for bad in [
            with("/finalizers/0", json!({"object": "ConfigMap a/b", "uid": "u", "finalizer": "x/y", "all": true})),
            with("/abandon/0", json!({"object": "ConfigMap a/b"})),
            with("/abandon/0/object", json!("*")),
            with("/uid", json!("")),
            with("/reason", json!(7)),
            Request::parse(r#"{"uid": "p", "everything": true}"#),
            Request::parse("true"),
            Request::parse(""),
        ] {
            assert!(matches!(&bad, Err(Error::Unreadable { problem }) if !problem.is_empty()), "{bad:?}");
        }
        assert!(matches!(Request::parse(&" ".repeat(LONGEST + 1)), Err(Error::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_only_what_is_listed_is_admitted(text in ".{0,200}", finalizer in "[a-z./]{1,20}") {
            let _ = Request::parse(&text);
            let wish = json!({"uid": "p", "finalizers": [{"object": "ConfigMap a/b", "uid": "u", "finalizer": finalizer}]});
            let request = Request::parse(&wish.to_string()).unwrap();
            let admitted = all().admit(&manager(), &uid("p"), &request);
            prop_assert!(admitted.finalizers.is_empty() && admitted.refused.len() == 1);
        }
    }
}
