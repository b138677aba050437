//! Label selectors, as the API server reads them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::Deserialize;
use serde_json::Value;

type Map = BTreeMap<String, String>;

/// What labels an object has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Labels<'a> {
    /// These.
    All(&'a Map),
    /// These, and perhaps others: the object is not in the set.
    AtLeast(&'a Map),
}

/// Whether a selector selects an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Selects {
    No,
    Perhaps,
    Yes,
}

/// The selector at `pointer`; `None` if there is none, or one that the API server would refuse.
pub(super) fn read(value: &Value, pointer: &str) -> Option<LabelSelector> {
    LabelSelector::deserialize(value.pointer(pointer)?).ok()
}

/// Whether `selector` selects an object. An empty selector selects everything.
pub(super) fn selects(selector: &LabelSelector, labels: Labels<'_>) -> Selects {
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| answer(labels, key, |found| found.is_some_and(|found| found == value)));
    let expressions = selector.match_expressions.iter().flatten().map(|r| answer(labels, &r.key, |f| holds(r, f)));
    equal.chain(expressions).min().unwrap_or(Selects::Yes)
}

/// [`selects`] for an object whose labels are all known.
pub(super) fn matches(selector: &LabelSelector, labels: &Map) -> bool {
    selects(selector, Labels::All(labels)) == Selects::Yes
}

fn answer(labels: Labels<'_>, key: &str, holds: impl Fn(Option<&str>) -> bool) -> Selects {
    let (map, complete) = match labels {
        Labels::All(map) => (map, true),
        Labels::AtLeast(map) => (map, false),
    };
    match map.get(key).map(String::as_str) {
        None if !complete => Selects::Perhaps,
        found if holds(found) => Selects::Yes,
        _ => Selects::No,
    }
}

fn holds(requirement: &LabelSelectorRequirement, found: Option<&str>) -> bool {
    let listed = |found: &str| requirement.values.iter().flatten().any(|value| value == found);
    match requirement.operator.as_str() {
        "In" => found.is_some_and(listed),
        "NotIn" => !found.is_some_and(listed),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        // The API server refuses any other.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_are_read_as_the_api_server_reads_them() {
        let map = Map::from([("app".to_owned(), "web".to_owned())]);
        let ask = |selector: Value| {
            let selector = read(&json!({"s": selector}), "/s").unwrap();
            (selects(&selector, Labels::All(&map)), selects(&selector, Labels::AtLeast(&map)))
        };
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        use Selects::{No, Perhaps, Yes};
        assert_eq!(ask(json!({})), (Yes, Yes));
        assert_eq!(ask(json!({"matchLabels": {"app": "web"}})), (Yes, Yes));
        assert_eq!(ask(json!({"matchLabels": {"app": "db"}})), (No, No));
        assert_eq!(ask(json!({"matchLabels": {"tier": "x"}})), (No, Perhaps));
        assert_eq!(ask(json!({"matchLabels": {"tier": "x", "app": "db"}})), (No, No));
        assert_eq!(ask(expression("app", "In", &["db", "web"])), (Yes, Yes));
        assert_eq!(ask(expression("app", "NotIn", &["web"])), (No, No));
        assert_eq!(ask(expression("tier", "NotIn", &["x"])), (Yes, Perhaps));
        assert_eq!(ask(expression("tier", "DoesNotExist", &[])), (Yes, Perhaps));
        assert_eq!(ask(expression("app", "Exists", &[])), (Yes, Yes));
        assert_eq!(ask(expression("app", "exists", &[])), (No, No));
        assert!(read(&json!({"s": {"matchLabels": 3}}), "/s").is_none());
    }
}
