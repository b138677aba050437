use serde_json::{Value, json};

use crate::object::ResourceKind;

/// The API server applies, to every DELETE anew, the first of these that there is: `orphanDependents` (true orphans,
/// false is Background), `propagationPolicy`, a finalizer `orphan` or `foregroundDeletion` that the object carries, and
/// the default, which is Background for custom resources. The last line lets a plain DELETE be repeated.
const ONLY_BACKGROUND: &str = "\
has(request.options.orphanDependents) ? !request.options.orphanDependents :
has(request.options.propagationPolicy) ? request.options.propagationPolicy == 'Background' :
has(oldObject.metadata.deletionTimestamp) || !has(oldObject.metadata.finalizers) ||
!oldObject.metadata.finalizers.exists(f, f in ['orphan', 'foregroundDeletion'])";

/// A ValidatingAdmissionPolicy and its binding. As values, because their types differ between Kubernetes versions.
pub(super) fn deletion_guard(namespaced: &ResourceKind, cluster: &ResourceKind) -> [Value; 2] {
    let name = format!("background-deletion-only.{}.{}", namespaced.plural, namespaced.group);
    let rule = |resource: &ResourceKind| {
        json!({
            "apiGroups": [resource.group],
            "apiVersions": ["*"],
            "operations": ["DELETE"],
            "resources": [resource.plural],
        })
    };
    let message = "a proxy owner is deleted with propagation policy Background only: Foreground would delete what it owns at \
                   once, and Orphan would take its references off; delete its parent instead";
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [rule(namespaced), rule(cluster)] },
                "validations": [{ "expression": ONLY_BACKGROUND, "message": message }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }),
    ]
}
