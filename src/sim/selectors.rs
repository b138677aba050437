//! Label and field selectors of a list or a watch.

use serde_json::Value;

use super::{
    catalogue::Resource,
    status::{Refusal, bad_request},
    value::{label, name, namespace},
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Missing(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Requirement {
    fn holds(&self, object: &Value) -> bool {
        match self {
            Self::Exists(key) => label(object, key).is_some(),
            Self::Missing(key) => label(object, key).is_none(),
            Self::In(key, values) => label(object, key).is_some_and(|value| values.iter().any(|v| v == value)),
            Self::NotIn(key, values) => label(object, key).is_none_or(|value| values.iter().all(|v| v != value)),
        }
    }
}

/// One condition on a field: its path, whether it must be equal, and the value.
type FieldRequirement = (String, bool, String);

/// Which objects a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

impl Selector {
    pub(super) fn parse(labels: &str, fields: &str, resource: &Resource) -> Result<Self, Refusal> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(fields, resource)? })
    }

    /// Only the object of this name.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.holds(object))
            && self.fields.iter().all(|(path, equal, value)| (field(object, path) == value) == *equal)
    }
}

fn field<'a>(object: &'a Value, path: &str) -> &'a str {
    match path {
        "metadata.name" => name(object),
        "metadata.namespace" => namespace(object),
        path => object.pointer(&format!("/{}", path.replace('.', "/"))).and_then(Value::as_str).unwrap_or_default(),
    }
}

/// Fields other than name and namespace by which a kind can be selected.
const FIELDS: &[(&str, &[&str])] = &[
    ("pods", &["spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase", "status.podIP"]),
    ("secrets", &["type"]),
    ("namespaces", &["status.phase"]),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "reason",
            "type",
            "source",
            "reportingComponent",
        ],
    ),
    ("services", &["spec.clusterIP", "spec.type"]),
];

fn parse_fields(text: &str, resource: &Resource) -> Result<Vec<FieldRequirement>, Refusal> {
    let mut requirements = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (path, equal, value) = if let Some((path, value)) = part.split_once("!=") {
            (path, false, value)
        } else if let Some((path, value)) = part.split_once("==") {
            (path, true, value)
        } else if let Some((path, value)) = part.split_once('=') {
            (path, true, value)
        } else {
            return Err(bad_request(format!("invalid selector: '{part}'; can't understand '{part}'")));
        };
        let common = path == "metadata.name" || (path == "metadata.namespace" && resource.namespaced);
        let own = FIELDS
            .iter()
            .any(|(plural, paths)| *plural == resource.plural && !resource.is_custom() && paths.contains(&path));
        if !common && !own {
            return Err(bad_request(format!("field label not supported: {path}")));
        }
        requirements.push((path.to_owned(), equal, value.to_owned()));
    }
    Ok(requirements)
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (place, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Refusal> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text).into_iter().map(str::trim).map(parse_label).collect()
}

fn parse_label(part: &str) -> Result<Requirement, Refusal> {
    let values = |list: &str| -> Vec<String> {
        list.trim().trim_start_matches('(').trim_end_matches(')').split(',').map(|v| v.trim().to_owned()).collect()
    };
    let own = |text: &str| text.trim().to_owned();
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::Missing(own(key)));
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(own(key), vec![own(value)]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(own(key), vec![own(value)]));
    }
    let mut words = part.splitn(2, char::is_whitespace);
    let key = words.next().unwrap_or_default();
    let Some(rest) = words.next().map(str::trim) else { return Ok(Requirement::Exists(own(key))) };
    match rest {
        rest if rest.starts_with("in") && rest.contains('(') => Ok(Requirement::In(own(key), values(&rest[2..]))),
        rest if rest.starts_with("notin") && rest.contains('(') => Ok(Requirement::NotIn(own(key), values(&rest[5..]))),
        rest => {
            let found = rest.split_whitespace().next().unwrap_or_default();
            Err(bad_request(format!(
                "unable to parse requirement: found '{found}', expected: in, notin, =, ==, !=, gt, lt"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sim::catalogue::Catalogue;

    #[test]
    fn selects_as_kubernetes_does() {
        let catalogue = Catalogue::new();
        let pods = catalogue.find("", "v1", "pods").unwrap();
        let object = json!({"metadata": {"name": "a", "labels": {"x": "1", "y": ""}}, "status": {"phase": "Running"}});
        let matches = |labels, fields| Selector::parse(labels, fields, pods).unwrap().matches(&object);
        for labels in ["x=1", "x==1,y", "x in (0, 1),!z", "z notin (1)", "z!=1", "y="] {
            assert!(matches(labels, ""), "{labels}");
        }
        for labels in ["x=2", "z", "!x", "x notin (1,2)", "x!=1", "z in (1)"] {
            assert!(!matches(labels, ""), "{labels}");
        }
        assert!(matches("", "metadata.name=a,status.phase!=Failed"));
        assert!(!matches("", "metadata.name=b"));
        assert_eq!(
            Selector::parse("", "metadata.foo=1", pods).unwrap_err().message(),
            "field label not supported: metadata.foo"
        );
        assert_eq!(Selector::parse("a b", "", pods).unwrap_err().code(), 400);
    }
}
