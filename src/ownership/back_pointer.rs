use serde::{Deserialize, Serialize};

use crate::{
    inventory::ClusterId,
    object::{LiveRef, ObjectId, ParentRef},
};

/// The annotation that ties an object to its parent: it names the parent's incarnation *and* the object itself.
///
/// Labels and annotations get copied, by operators to what they make and by people to what they clone. A copy of
/// this one still names the original, and is a claim to nothing.
///
/// The text is JSON with a format number, written in one way only and free of limits below those of annotations:
/// `{"v":1,"parent":{"group":…,"kind":…,"namespace":…,"name":…,"uid":…},"home":…,"self":{…}}`. An empty group (core), an
/// absent namespace (cluster scope), and the home of a parent in the same cluster are left out. It holds identities and
/// nothing of an object's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackPointer {
    parent: LiveRef,
    home: Option<ClusterId>,
    object: ObjectId,
}

/// Why a back-pointer could not be read. The object is then neither ours nor provably foreign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// Written by a later release, or not by us.
    #[error(
        "back-pointer has format {found}, but this release reads format {}: upgrade the operator",
        BackPointer::FORMAT
    )]
    Format {
        /// The format number it names.
        found: u64,
    },
    /// Cut, edited, or never one.
    #[error("back-pointer is damaged: {problem}; remove the annotation to give the object up, or restore it")]
    Damaged {
        /// Where and how, without quoting the text.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Format {
    v: u64,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u64,
    parent: LiveRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    home: Option<ClusterId>,
    #[serde(rename = "self")]
    object: ObjectId,
}

impl BackPointer {
    /// The format that [`encode`](Self::encode) writes and [`decode`](Self::decode) reads.
    pub const FORMAT: u64 = 1;

    /// The back-pointer of `object` to `parent`, in the same cluster.
    #[must_use]
    pub fn new(parent: &ParentRef, object: &ObjectId) -> Self {
        Self { parent: parent.live(), home: None, object: object.clone() }
    }

    /// Says that the parent lives in cluster `home`, and the object in another one.
    #[must_use]
    pub fn from_cluster(mut self, home: ClusterId) -> Self {
        self.home = Some(home);
        self
    }

    /// The cluster that the parent lives in; `None` if it is the object's own.
    #[must_use]
    pub fn home(&self) -> Option<&ClusterId> {
        self.home.as_ref()
    }

    /// The parent it names.
    #[must_use]
    pub fn parent(&self) -> &LiveRef {
        &self.parent
    }

    /// The object it was written for.
    #[must_use]
    pub fn object(&self) -> &ObjectId {
        &self.object
    }

    /// The annotation's value: the same text for the same identities, always.
    #[must_use]
    pub fn encode(&self) -> String {
        let wire =
            Wire { v: Self::FORMAT, parent: self.parent.clone(), home: self.home.clone(), object: self.object.clone() };
        // maps of strings always serialise; an empty text would read as damaged, never as a claim
        serde_json::to_string(&wire).unwrap_or_default()
    }

    /// Reads an annotation's value.
    ///
    /// # Errors
    /// [`Unreadable`] unless the text is whole and in the known format, and both identities are legal.
    pub fn decode(text: &str) -> Result<Self, Unreadable> {
        let damaged = |error: serde_json::Error| Unreadable::Damaged {
            problem: match error.classify() {
                serde_json::error::Category::Data => "a part is missing, unknown or illegal".to_owned(),
                _ => format!("no valid JSON at column {}", error.column()),
            },
        };
        let Format { v: found } = serde_json::from_str(text).map_err(damaged)?;
        if found != Self::FORMAT {
            return Err(Unreadable::Format { found });
        }
        let wire: Wire = serde_json::from_str(text).map_err(damaged)?;
        Ok(Self { parent: wire.parent, home: wire.home, object: wire.object })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::testing::{any_id, any_parent, id, parent};

    #[test]
    fn the_format_is_stable() {
        let pointer = BackPointer::new(&parent(), &id("Namespace b"));
        let text = r#"{"v":1,"parent":{"group":"faros.pusher.com","kind":"GitTrack","namespace":"a","name":"track","uid":"p-1"},"self":{"kind":"Namespace","name":"b"}}"#;
        assert_eq!(pointer.encode(), text);
        assert_eq!(BackPointer::decode(text), Ok(pointer.clone()));
        let elsewhere = text.replace(r#""self""#, r#""home":"c-1","self""#);
        let pointer = pointer.from_cluster(ClusterId(crate::object::Uid::new("c-1").unwrap()));
        assert_eq!(pointer.encode(), elsewhere);
        assert_eq!(BackPointer::decode(&elsewhere), Ok(pointer));
    }

    #[test]
    fn s09_what_is_not_whole_is_unreadable_and_not_quoted() {
        let good = BackPointer::new(&parent(), &id("ConfigMap b/secret-name")).encode();
        for bad in [
            String::new(),
            "true".into(),
            "{}".into(),
            good[..good.len() - 1].into(),
            good.replace("\"uid\":\"p-1\"", "\"uid\":\"\""),
            good.replace("\"name\":\"track\",", ""),
            good.replace("\"self\"", "\"other\""),
            good.replace("secret-name", "no/name"),
            good.replace("\"v\":1", "\"v\":1,\"v\":1"),
        ] {
            match BackPointer::decode(&bad) {
                Err(Unreadable::Damaged { problem }) => assert!(!problem.contains("name"), "{problem}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
        assert_eq!(BackPointer::decode(&good.replace("\"v\":1", "\"v\":2")), Err(Unreadable::Format { found: 2 }));
        assert_eq!(BackPointer::decode(r#"{"v":7}"#), Err(Unreadable::Format { found: 7 }));
    }

    proptest! {
        #[test]
        fn s10_every_legal_name_reads_back(parent in any_parent(), object in any_id()) {
            let pointer = BackPointer::new(&parent, &object);
            prop_assert_eq!(BackPointer::decode(&pointer.encode()), Ok(pointer));
        }

        #[test]
        fn a_cut_text_is_never_read(parent in any_parent(), object in any_id(), share in 0.0..1.0_f64) {
            let text = BackPointer::new(&parent, &object).encode();
            let cut: String = text.chars().take((text.chars().count() as f64 * share) as usize).collect();
            prop_assert!(BackPointer::decode(&cut).is_err());
        }
    }
}
