//! Rights as a table, and as Roles.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write},
};

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::{Need, Place, Resource, Right, Rights, Verb};

/// Who gets the rights, and what the roles are called.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// The ServiceAccount's namespace.
    pub namespace: String,
    /// The ServiceAccount's name, and that of the roles and bindings.
    pub name: String,
}

impl Account {
    /// The ServiceAccount `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// The rules of a Role in a namespace, or of a ClusterRole.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Role {
    /// The namespace of a Role; `None` for a ClusterRole.
    pub namespace: Option<String>,
    /// Its rules, each with its reasons, such as `list, watch: changes wake the parent`.
    pub rules: Vec<(PolicyRule, Vec<String>)>,
}

/// What resources of one rule have in common: group, names, verbs.
type Same<'a> = (&'a str, &'a BTreeSet<String>, BTreeSet<Verb>);

/// What for, and which verbs.
type Reasons<'a> = BTreeMap<&'a str, BTreeSet<Verb>>;

impl Rights {
    /// The Roles and the ClusterRole that grant these rights, and no others. Resources that need the same are in one rule.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let mut places: BTreeMap<Option<&str>, BTreeMap<&Resource, Vec<&Right>>> = BTreeMap::new();
        for right in self.iter() {
            let names: Vec<Option<&str>> = match &right.place {
                Place::Everywhere => vec![None],
                Place::Namespaces(names) => names.iter().map(|name| Some(name.as_str())).collect(),
            };
            for name in names {
                places.entry(name).or_default().entry(&right.resource).or_default().push(right);
            }
        }
        let roles = places.into_iter().map(|(namespace, resources)| {
            let mut rules: BTreeMap<Same<'_>, (Vec<String>, Reasons<'_>)> = BTreeMap::new();
            for (resource, rights) in resources {
                let verbs = rights.iter().map(|right| right.verb).collect();
                let (plurals, reasons) = rules.entry((&resource.group, &resource.names, verbs)).or_default();
                plurals.push(resource.plural.clone());
                for right in rights {
                    for reason in &right.reasons {
                        reasons.entry(reason).or_default().insert(right.verb);
                    }
                }
            }
            let rules = rules.into_iter().map(|((group, names, verbs), (plurals, reasons))| {
                let rule = PolicyRule {
                    api_groups: Some(vec![group.to_owned()]),
                    resources: Some(plurals),
                    resource_names: (!names.is_empty()).then(|| names.iter().cloned().collect()),
                    verbs: verbs.into_iter().map(|verb| verb.as_str().to_owned()).collect(),
                    ..PolicyRule::default()
                };
                let mut reasons: Vec<_> = reasons.into_iter().map(|(reason, verbs)| (verbs, reason)).collect();
                reasons.sort();
                let words = |verbs: BTreeSet<Verb>| verbs.into_iter().map(Verb::as_str).collect::<Vec<_>>().join(", ");
                (rule, reasons.into_iter().map(|(verbs, reason)| format!("{}: {reason}", words(verbs))).collect())
            });
            Role { namespace: namespace.map(ToOwned::to_owned), rules: rules.collect() }
        });
        roles.collect()
    }

    /// Namespace, ServiceAccount, roles and bindings as YAML, each rule with its reasons, ready for `kubectl apply -f -`.
    #[must_use]
    pub fn yaml(&self, account: &Account) -> String {
        let Account { namespace: home, name } = account;
        let mut text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {home}}}\n---\n\
             apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {home}}}\n"
        );
        for role in self.roles() {
            let (prefix, place) = match &role.namespace {
                None => ("Cluster", String::new()),
                Some(namespace) => ("", format!(", namespace: {namespace}")),
            };
            let head = |kind: &str| {
                format!(
                    "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {prefix}{kind}\n\
                     metadata: {{name: {name}{place}}}\n"
                )
            };
            text += &head("Role");
            text += "rules:\n";
            for (rule, reasons) in &role.rules {
                text += &describe(rule, reasons);
            }
            text += &head("RoleBinding");
            let _ = writeln!(
                text,
                "roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {prefix}Role, name: {name}}}\n\
                 subjects: [{{kind: ServiceAccount, name: {name}, namespace: {home}}}]"
            );
        }
        text
    }
}

fn describe(rule: &PolicyRule, reasons: &[String]) -> String {
    let list = |values: &[String]| {
        let quoted: Vec<_> = values.iter().map(|v| if v.is_empty() { "\"\"" } else { v.as_str() }).collect();
        format!("[{}]", quoted.join(", "))
    };
    let mut text: String = reasons.iter().map(|reason| format!("# {reason}\n")).collect();
    let _ = writeln!(text, "- apiGroups: {}", list(rule.api_groups.as_deref().unwrap_or_default()));
    let _ = writeln!(text, "  resources: {}", list(rule.resources.as_deref().unwrap_or_default()));
    if let Some(names) = &rule.resource_names {
        let _ = writeln!(text, "  resourceNames: {}", list(names));
    }
    let _ = writeln!(text, "  verbs: {}", list(&rule.verbs));
    text
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("| resource | verbs | where | for | without it |\n|---|---|---|---|---|\n")?;
        let mut rows: BTreeMap<(&Resource, &Place, &BTreeSet<String>, &Need), Vec<&str>> = BTreeMap::new();
        for right in self.iter() {
            let row = (&right.resource, &right.place, &right.reasons, &right.need);
            rows.entry(row).or_default().push(right.verb.as_str());
        }
        for ((resource, place, reasons, need), verbs) in rows {
            let group = if resource.group.is_empty() { String::new() } else { format!(".{}", resource.group) };
            let names: Vec<_> = resource.names.iter().map(String::as_str).collect();
            let names = if names.is_empty() { String::new() } else { format!(" named {}", names.join(", ")) };
            let place = match place {
                Place::Everywhere => "everywhere".to_owned(),
                Place::Namespaces(all) => all.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
            };
            let without = match need {
                Need::Required => "nothing works, and the outcome names it",
                Need::Optional { cost } => cost,
            };
            let reasons: Vec<_> = reasons.iter().map(String::as_str).collect();
            let plural = &resource.plural;
            let (verbs, reasons) = (verbs.join(", "), reasons.join("; "));
            writeln!(f, "| `{plural}{group}`{names} | {verbs} | {place} | {reasons} | {without} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Setup, *};
    use crate::object::{ObjectId, ResourceKind, Scope};

    fn kind(group: &str, kind: &str, plural: &str, scope: Scope) -> ResourceKind {
        ResourceKind::new(group, "v1", kind, plural, scope)
    }

    fn setup() -> Setup {
        let roles = kind("rbac.authorization.k8s.io", "Role", "roles", Scope::Namespaced);
        let held = ObjectId::new("rbac.authorization.k8s.io", "Role", Some("a"), "operator").unwrap();
        Setup::new(kind("example.com", "Foo", "foos", Scope::Namespaced))
            .children([
                kind("", "ConfigMap", "configmaps", Scope::Namespaced),
                kind("", "Service", "services", Scope::Namespaced),
                kind("other.example.com", "Bar", "bars", Scope::Cluster),
            ])
            .namespaces(["a", "b"])
            .hold(roles, held)
    }

    fn allows(role: &Role, group: &str, resource: &str, verb: &str) -> bool {
        let has = |list: &Option<Vec<String>>, text: &str| list.iter().flatten().any(|t| t == text);
        let matches = |rule: &PolicyRule| has(&rule.api_groups, group) && has(&rule.resources, resource);
        role.rules.iter().any(|(rule, _)| matches(rule) && rule.verbs.iter().any(|v| v == verb))
    }

    #[test]
    fn each_right_is_in_the_role_of_its_place_and_in_no_other() {
        let roles = setup().rights().roles();
        assert_eq!(roles.iter().map(|r| r.namespace.as_deref()).collect::<Vec<_>>(), [None, Some("a"), Some("b")]);
        for (group, resource, cluster) in
            [("", "configmaps", false), ("example.com", "foos", false), ("other.example.com", "bars", true)]
        {
            for role in &roles {
                let expected = role.namespace.is_none() == cluster;
                assert_eq!(allows(role, group, resource, "get"), expected, "{resource} {:?}", role.namespace);
            }
        }
        assert!(roles.iter().all(|role| role.rules.iter().all(|(rule, _)| !rule.verbs.contains(&"*".to_owned()))));
        // Held objects by name only, and from the ClusterRole.
        let (held, _) = roles[0].rules.iter().find(|(r, _)| r.resources == Some(vec!["roles".into()])).unwrap();
        assert_eq!(held.resource_names, Some(vec!["operator".to_owned()]));
    }

    #[test]
    fn what_is_needed_twice_is_listed_once_and_required_if_either_is() {
        let rights = setup().rights();
        let lists: Vec<_> =
            rights.iter().filter(|r| r.resource.plural == "configmaps" && r.verb == Verb::List).collect();
        assert_eq!(lists.len(), 1, "records and children");
        assert_eq!(lists[0].need, Need::Required);
        assert!(lists[0].reasons.len() > 1, "{:?}", lists[0].reasons);
        let table = rights.to_string();
        assert_eq!(table.matches("| `services` | get").count(), 1, "{table}");
        assert!(rights.required().iter().all(|r| r.verb != Verb::Watch || r.resource.plural == "foos"));
    }

    #[test]
    fn only_definitions_of_custom_resources_are_read() {
        let rights = setup().rights();
        let read: Vec<_> = rights.iter().filter(|r| r.resource.plural == "customresourcedefinitions").collect();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].resource.names, BTreeSet::from(["bars.other.example.com".to_owned()]));
    }

    #[test]
    fn the_text_says_what_the_roles_say() {
        let rights = setup().rights();
        let text = rights.yaml(&Account::new("system", "operator"));
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        let roles: Vec<_> = documents.iter().filter(|d| d["rules"].is_array()).collect();
        let expected = rights.roles();
        assert_eq!(roles.len(), expected.len());
        for (document, role) in roles.iter().zip(&expected) {
            let rules: Vec<PolicyRule> = serde_json::from_value(document["rules"].clone()).unwrap();
            assert_eq!(rules, role.rules.iter().map(|(rule, _)| rule.clone()).collect::<Vec<_>>());
            assert_eq!(document["metadata"]["namespace"].as_str(), role.namespace.as_deref());
        }
        assert_eq!(documents.iter().filter(|d| d["subjects"].is_array()).count(), roles.len());
    }
}
