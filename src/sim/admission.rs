//! What may be refused before it is done: rights of users, policies, the rules of namespaces and of owner references.

use std::{fmt, sync::Arc};

use serde_json::{Value, json};

use super::{
    audit::{Target, Verb},
    catalogue::{Catalogue, Resource},
    request::Ask,
    status::{Refusal, forbidden, invalid_as, not_found_in, refuse},
    value::list,
};

/// What admission does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Something is created, be it by an apply.
    Create,
    /// Something is changed; also when the change takes it away because its last finalizer goes.
    Update,
    /// Something is deleted, be it as part of a collection.
    Delete,
}

/// A change that a policy may deny.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Review<'a> {
    /// Who asks.
    pub user: &'a str,
    /// What is to be done.
    pub operation: Operation,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The resource, such as `configmaps`.
    pub plural: &'a str,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
    /// The object as it would be; `None` for a deletion.
    pub object: Option<&'a Value>,
    /// The object as it is; `None` for a creation.
    pub old_object: Option<&'a Value>,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
}

type Rule = Arc<dyn Fn(&Review<'_>) -> Option<String> + Send + Sync>;
type Right = Arc<dyn Fn(&str, Verb, &Target) -> bool + Send + Sync>;

/// All rules of a cluster.
#[derive(Clone, Default)]
pub(super) struct Admission {
    policies: Vec<(String, Rule)>,
    denials: Vec<Right>,
    /// OwnerReferencesPermissionEnforcement.
    pub(super) owner_references: bool,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.policies.iter().map(|(name, _)| name).collect();
        f.debug_struct("Admission").field("policies", &names).field("denials", &self.denials.len()).finish()
    }
}

impl Admission {
    pub(super) fn add_policy(&mut self, name: &str, rule: Rule) {
        self.remove_policy(name);
        self.policies.push((name.to_owned(), rule));
    }

    pub(super) fn remove_policy(&mut self, name: &str) {
        self.policies.retain(|(known, _)| known != name);
    }

    pub(super) fn add_denial(&mut self, denial: Right) {
        self.denials.push(denial);
    }

    pub(super) fn clear_denials(&mut self) {
        self.denials.clear();
    }

    pub(super) fn may(&self, user: &str, verb: Verb, target: &Target) -> bool {
        !self.denials.iter().any(|denial| denial(user, verb, target))
    }

    /// Whether the user has the right to ask this at all.
    pub(super) fn authorize(&self, ask: &Ask) -> Result<(), Refusal> {
        if self.denials.is_empty() {
            return Ok(());
        }
        let target = ask.target();
        if self.may(&ask.user, ask.verb, &target) {
            return Ok(());
        }
        let resource = if target.subresource.is_empty() {
            target.plural.clone()
        } else {
            format!("{}/{}", target.plural, target.subresource)
        };
        let place = if target.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", target.namespace)
        };
        let why = format!(
            "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" {place}",
            ask.user, ask.verb, target.group
        );
        Err(forbidden(&ask.resource, &ask.name, &why, &[]))
    }

    /// Whether all policies agree. `name` is the name by which a refusal calls the object.
    pub(super) fn review(&self, review: &Review<'_>, name: &str) -> Result<(), Refusal> {
        for (policy, rule) in &self.policies {
            if let Some(message) = rule(review) {
                let what = qualified(review.plural, review.group);
                let text = format!(
                    "{what} \"{name}\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' \
                     denied request: {message}"
                );
                let mut details = json!({"name": name, "kind": review.plural, "causes": [{"message": message}]});
                if !review.group.is_empty() {
                    details["group"] = json!(review.group);
                }
                return Err(refuse(422, "Invalid", text, Some(details)));
            }
        }
        Ok(())
    }

    /// What OwnerReferencesPermissionEnforcement says of a write, if it is on.
    pub(super) fn references(
        &self,
        ask: &Ask,
        catalogue: &Catalogue,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), Refusal> {
        if !self.owner_references {
            return Ok(());
        }
        let (before, after) =
            (old.map(|old| list(old, "ownerReferences")).unwrap_or_default(), list(new, "ownerReferences"));
        if before == after {
            return Ok(());
        }
        let name = super::value::name(new);
        if old.is_some() {
            // To change them by way of the status takes the right to delete the status.
            let target = Target { name: name.to_owned(), ..ask.target() };
            if !self.may(&ask.user, Verb::Delete, &target) {
                let why = "cannot set an ownerRef on a resource you can't delete: , <nil>";
                return Err(forbidden(&ask.resource, name, why, &[]));
            }
        }
        let blocks = |reference: &Value| reference.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true);
        let of = |reference: &Value, field: &str| -> String {
            reference.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        for reference in after.iter().filter(|reference| blocks(reference)) {
            if before.iter().any(|known| blocks(known) && known.get("uid") == reference.get("uid")) {
                continue;
            }
            let (api_version, kind) = (of(reference, "apiVersion"), of(reference, "kind"));
            let Some(owner) = catalogue.map(&api_version, &kind) else {
                // Who may set all finalizers need not say of what.
                let any = Target {
                    group: "*".to_owned(),
                    plural: "*".to_owned(),
                    subresource: "finalizers".to_owned(),
                    ..Target::default()
                };
                if self.may(&ask.user, Verb::Update, &any) {
                    continue;
                }
                let why = format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion \
                     {api_version} Kind {kind}: no matches for kind \"{kind}\" in version \"{api_version}\""
                );
                return Err(forbidden(&ask.resource, name, &why, &[]));
            };
            let target = Target {
                group: owner.group.clone(),
                version: owner.preferred().to_owned(),
                plural: owner.plural.clone(),
                namespace: if owner.namespaced { ask.namespace.clone() } else { String::new() },
                name: of(reference, "name"),
                subresource: "finalizers".to_owned(),
            };
            if !self.may(&ask.user, Verb::Update, &target) {
                let why = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set \
                           finalizers on: , <nil>";
                return Err(forbidden(&ask.resource, name, why, &[]));
            }
        }
        Ok(())
    }
}

fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// What NamespaceLifecycle says of a creation; `namespace` is the Namespace, if it exists.
pub(super) fn into_namespace(
    resource: &Resource,
    name: &str,
    in_namespace: &str,
    namespace: Option<&Value>,
) -> Result<(), Refusal> {
    let Some(namespace) = namespace else { return Err(not_found_in("namespaces", "", in_namespace)) };
    if namespace.pointer("/status/phase").and_then(Value::as_str) == Some("Terminating") {
        let cause = json!({
            "reason": "NamespaceTerminating", "message": format!("namespace {in_namespace} is being terminated"),
            "field": "metadata.namespace",
        });
        let why = format!("unable to create new content in namespace {in_namespace} because it is being terminated");
        return Err(forbidden(resource, name, &why, &[cause]));
    }
    Ok(())
}

/// Namespaces that NamespaceLifecycle protects.
pub(super) fn is_protected(namespace: &str) -> bool {
    ["default", "kube-system", "kube-public"].contains(&namespace)
}

/// 422 for options that a request has and may not have.
pub(super) fn bad_dry_run(kind: &str, given: &str) -> Refusal {
    let error = super::status::FieldError::unsupported("dryRun", &json!([given]), &["All"]);
    invalid_as(kind, "meta.k8s.io", "", &[error])
}
