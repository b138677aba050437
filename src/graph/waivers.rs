//! Which preferred edges of an object shall not hold, as its author says.

use std::collections::BTreeSet;

use super::annotations::{self, Error};
use crate::object::{GroupKind, ObjectId, Scope};

/// Preferred edges from one object that shall not hold. Declared edges always do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Waiver {
    /// All of them.
    All,
    /// Those of one rule.
    Rule(String),
    /// Those to one object.
    To(ObjectId),
}

/// Reads an annotation that waives edges of `object`: names of rules, `*` for all of them, and objects in the form of
/// `depends-on` references, separated by commas. A rule that is not in use is nothing to waive.
///
/// `scope` says where objects of a kind live, as far as that is known.
///
/// # Errors
/// [`Error::Waiver`] for the first item that can be neither.
pub fn read(
    object: &ObjectId,
    annotation: &str,
    value: &str,
    scope: &dyn Fn(&GroupKind) -> Option<Scope>,
) -> Result<BTreeSet<Waiver>, Error> {
    let items = value.split(',').map(str::trim);
    let waivers = items.map(|item| match item {
        "*" => Ok(Waiver::All),
        rule if is_rule(rule) => Ok(Waiver::Rule(rule.to_owned())),
        reference => annotations::reference(reference, scope).map(Waiver::To).ok_or_else(|| Error::Waiver {
            object: object.clone(),
            annotation: annotation.to_owned(),
            item: annotations::cut(reference),
        }),
    });
    waivers.collect()
}

/// Names of rules have no slash, and references always do.
fn is_rule(item: &str) -> bool {
    !item.is_empty() && item.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_objects_and_everything_can_be_waived() {
        let object: ObjectId = "Mesh.mesh.example.com a/mesh".parse().unwrap();
        let scope = |kind: &GroupKind| (kind.kind == "Namespace").then_some(Scope::Cluster);
        let read = |value: &str| read(&object, "m.example.com/waive", value, &scope);
        let to = Waiver::To("Deployment.apps a/operator".parse().unwrap());
        let found = read("served-by, apps/namespaces/a/Deployment/operator").unwrap();
        assert_eq!(found, BTreeSet::from([Waiver::Rule("served-by".into()), to]));
        assert_eq!(read("*").unwrap(), BTreeSet::from([Waiver::All]));
        for bad in ["", "served-by,", "served by", "apps/Deployment", "/namespaces/a/Namespace/b", "**"] {
            let error = read(bad).unwrap_err();
            assert!(matches!(error, Error::Waiver { .. }), "{bad}");
            assert!(error.to_string().contains("m.example.com/waive"), "{error}");
        }
    }
}
