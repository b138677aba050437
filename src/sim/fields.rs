//! Sets of fields, as `managedFields` holds them, and the comparisons of structured merge.
//!
//! A set is a tree whose edges are named as in FieldsV1: `f:name`, `k:{"type":"Ready"}`, `v:"x"`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::shape::{ListShape, Shape};

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Set {
    member: bool,
    children: BTreeMap<String, Self>,
}

static NOTHING: Set = Set { member: false, children: BTreeMap::new() };

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    fn insert(&mut self, path: &[String]) {
        match path {
            [] => self.member = true,
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.member |= other.member;
        for (edge, child) in &other.children {
            let entry = union.children.entry(edge.clone()).or_default();
            *entry = entry.union(child);
        }
        union
    }

    /// Keeps the members for which `keep` holds, given whether the other set has them.
    fn filter(&self, other: Option<&Self>, keep: fn(bool) -> bool) -> Self {
        let children = self.children.iter().filter_map(|(edge, child)| {
            let child = child.filter(other.and_then(|other| other.children.get(edge)), keep);
            (!child.is_empty()).then(|| (edge.clone(), child))
        });
        Self { member: self.member && keep(other.is_some_and(|other| other.member)), children: children.collect() }
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        self.filter(Some(other), |has| !has)
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.filter(Some(other), |has| has)
    }

    /// Removes a part of the tree.
    pub(super) fn strip(&mut self, path: &[&str]) {
        match path {
            [] => *self = Self::default(),
            [first, rest @ ..] => {
                if let Some(child) = self.children.get_mut(*first) {
                    child.strip(rest);
                    if child.is_empty() {
                        self.children.remove(*first);
                    }
                }
            }
        }
    }

    /// Removes one member and leaves what is below it.
    pub(super) fn strip_member(&mut self, path: &[&str]) {
        match path {
            [] => self.member = false,
            [first, rest @ ..] => {
                if let Some(child) = self.children.get_mut(*first) {
                    child.strip_member(rest);
                    if child.is_empty() {
                        self.children.remove(*first);
                    }
                }
            }
        }
    }

    /// The members as the server prints paths: `.spec.ports[port=80].name`.
    pub(super) fn paths(&self) -> Vec<String> {
        fn walk(set: &Set, path: &str, into: &mut Vec<String>) {
            if set.member {
                into.push(path.to_owned());
            }
            for (edge, child) in &set.children {
                walk(child, &format!("{path}{}", print(edge)), into);
            }
        }
        let mut paths = Vec::new();
        walk(self, "", &mut paths);
        paths
    }

    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        map.extend(self.children.iter().map(|(edge, child)| (edge.clone(), child.to_json())));
        Value::Object(map)
    }

    /// Reads FieldsV1; `None` if it is not a tree of maps.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let mut root = Self::read(value)?;
        root.member = false;
        Some(root)
    }

    fn read(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let mut set = Self { member: map.is_empty(), children: BTreeMap::new() };
        for (edge, child) in map {
            if edge == "." {
                set.member = true;
            } else {
                set.children.insert(edge.clone(), Self::read(child)?);
            }
        }
        Some(set)
    }
}

fn print(edge: &str) -> String {
    match edge.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", key)) => {
            let key: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
            let parts: Vec<_> = key.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", parts.join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        _ => format!("[{edge}]"),
    }
}

/// The edge of an item of a list with keys.
fn edge_of(item: &Value, keys: &[String]) -> String {
    let key: Map<String, Value> = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone()))).collect();
    format!("k:{}", Value::Object(key))
}

/// The parts of a value that managers own one by one; `None` if it is one value.
fn parts<'a>(value: &'a Value, shape: Shape<'a>) -> Option<Vec<(String, &'a Value, Shape<'a>)>> {
    match value {
        Value::Object(map) if !shape.is_atomic_map() => {
            Some(map.iter().map(|(name, value)| (format!("f:{name}"), value, shape.field(name))).collect())
        }
        Value::Array(items) => match shape.list() {
            ListShape::Atomic => None,
            ListShape::Set => Some(items.iter().map(|item| (format!("v:{item}"), item, shape.item())).collect()),
            ListShape::Keyed(keys) => {
                Some(items.iter().map(|item| (edge_of(item, &keys), item, shape.item())).collect())
            }
        },
        _ => None,
    }
}

/// The fields that an applied configuration mentions.
pub(super) fn mentioned(value: &Value, shape: Shape<'_>) -> Set {
    fn walk(value: &Value, shape: Shape<'_>, set: &mut Set) {
        let Some(parts) = parts(value, shape) else {
            set.member = true;
            return;
        };
        for (edge, part, below) in parts {
            let child = set.children.entry(edge.clone()).or_default();
            walk(part, below, child);
            let empty = part.is_null() || part.as_object().is_some_and(Map::is_empty);
            // Items of lists, and keys that are not fields, are owned themselves.
            let own = !edge.strip_prefix("f:").is_some_and(|name| shape.declares(name));
            child.member |= empty || own;
            if child.is_empty() {
                set.children.remove(&edge);
            }
        }
    }
    let mut set = Set::default();
    walk(value, shape, &mut set);
    set
}

/// What differs between two states.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: Set,
    pub(super) modified: Set,
    pub(super) removed: Set,
}

impl Comparison {
    pub(super) fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares two objects.
pub(super) fn compare(old: &Value, new: &Value, shape: Shape<'_>) -> Comparison {
    let mut comparison = Comparison::default();
    compare_at(Some(old), Some(new), shape, &mut Vec::new(), &mut comparison);
    comparison
}

fn compare_at(
    old: Option<&Value>,
    new: Option<&Value>,
    shape: Shape<'_>,
    path: &mut Vec<String>,
    found: &mut Comparison,
) {
    if old == new {
        return;
    }
    let olds = old.map(|old| parts(old, shape));
    let news = new.map(|new| parts(new, shape));
    let leaf = |side: &Option<Option<Vec<_>>>| matches!(side, Some(None));
    if leaf(&olds) || leaf(&news) {
        // One value on at least one side.
        match (old, new) {
            (None, _) => found.added.insert(path),
            (_, None) => found.removed.insert(path),
            _ => {
                if let Some(Some(parts)) = olds {
                    descend(parts, Vec::new(), path, found);
                } else if let Some(Some(parts)) = news {
                    descend(Vec::new(), parts, path, found);
                }
                found.modified.insert(path);
            }
        }
        return;
    }
    let (olds, news) = (olds.flatten(), news.flatten());
    if !shape.always_exists() {
        match (&olds, &news) {
            (None, Some(_)) => found.added.insert(path),
            (Some(_), None) => found.removed.insert(path),
            _ => {}
        }
    }
    descend(olds.unwrap_or_default(), news.unwrap_or_default(), path, found);
}

fn descend<'a>(
    olds: Vec<(String, &'a Value, Shape<'a>)>,
    news: Vec<(String, &'a Value, Shape<'a>)>,
    path: &mut Vec<String>,
    found: &mut Comparison,
) {
    let mut pairs: BTreeMap<String, (Option<&Value>, Option<&Value>, Shape<'a>)> = BTreeMap::new();
    for (edge, value, shape) in olds {
        pairs.insert(edge, (Some(value), None, shape));
    }
    for (edge, value, shape) in news {
        pairs.entry(edge).or_insert((None, None, shape)).1 = Some(value);
    }
    for (edge, (old, new, shape)) in pairs {
        path.push(edge);
        compare_at(old, new, shape, path, found);
        path.pop();
    }
}

/// Merges an applied configuration into an object.
pub(super) fn merge(live: &mut Value, applied: &Value, shape: Shape<'_>) {
    match applied {
        // Nothing is said of what is in it.
        Value::Null if parts(live, shape).is_some() => {}
        Value::Object(fields) if !shape.is_atomic_map() => {
            let live = super::value::map(live);
            for (name, value) in fields {
                match live.get_mut(name) {
                    Some(known) => merge(known, value, shape.field(name)),
                    None => {
                        live.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        Value::Array(items) => {
            let edge = match shape.list() {
                ListShape::Atomic => {
                    *live = applied.clone();
                    return;
                }
                ListShape::Set => None,
                ListShape::Keyed(keys) => Some(keys),
            };
            let identity = |item: &Value| match &edge {
                Some(keys) => edge_of(item, keys),
                None => item.to_string(),
            };
            let mut known = match live {
                Value::Array(known) => std::mem::take(known),
                _ => Vec::new(),
            };
            // Items of the configuration come in its order; others keep their place among them.
            let wanted: Vec<String> = items.iter().map(identity).collect();
            let mut merged = Vec::new();
            let mut next = 0;
            for mut item in known.drain(..) {
                match wanted.iter().position(|edge| *edge == identity(&item)) {
                    None => merged.push((None, item)),
                    Some(place) => {
                        merge(&mut item, &items[place], shape.item());
                        merged.push((Some(place), item));
                    }
                }
            }
            let mut list = Vec::new();
            for (place, item) in merged {
                if let Some(place) = place {
                    while next < items.len() && next < place {
                        if !list.iter().any(|known| identity(known) == wanted[next]) {
                            list.push(items[next].clone());
                        }
                        next += 1;
                    }
                    next = next.max(place + 1);
                    if list.iter().any(|known| identity(known) == wanted[place]) {
                        list.retain(|known| identity(known) != wanted[place]);
                    }
                }
                list.push(item);
            }
            for (place, item) in items.iter().enumerate() {
                if !list.iter().any(|known| identity(known) == wanted[place]) {
                    list.push(item.clone());
                }
            }
            *live = Value::Array(list);
        }
        _ => *live = applied.clone(),
    }
}

/// Takes out what `gone` names and `kept` does not, nor anything below it. What is emptied by that goes as well, or
/// becomes null if it is kept itself.
pub(super) fn remove(value: &mut Value, gone: &Set, kept: &Set, shape: Shape<'_>) {
    match value {
        Value::Object(map) if !shape.is_atomic_map() => {
            for (edge, gone) in &gone.children {
                let Some(name) = edge.strip_prefix("f:") else { continue };
                let kept = kept.children.get(edge);
                let free = kept.is_none_or(Set::is_empty);
                if gone.member && free {
                    map.remove(name);
                } else if let Some(value) = map.get_mut(name).filter(|value| !is_empty(value)) {
                    remove(value, gone, kept.unwrap_or(&NOTHING), shape.field(name));
                    if is_empty(value) && free {
                        map.remove(name);
                    } else if is_empty(value) {
                        *value = Value::Null;
                    }
                }
            }
        }
        Value::Array(items) => {
            let keys = match shape.list() {
                ListShape::Atomic => return,
                ListShape::Set => None,
                ListShape::Keyed(keys) => Some(keys),
            };
            items.retain_mut(|item| {
                let edge = match &keys {
                    Some(keys) => edge_of(item, keys),
                    None => format!("v:{item}"),
                };
                let Some(gone) = gone.children.get(&edge) else { return true };
                let kept = kept.children.get(&edge);
                if gone.member && kept.is_none_or(Set::is_empty) {
                    return false;
                }
                remove(item, gone, kept.unwrap_or(&NOTHING), shape.item());
                true
            });
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builtin() -> Shape<'static> {
        Shape::root(None, false)
    }

    #[test]
    fn compares_as_the_server_does() {
        let old = json!({"metadata": {"name": "a"}});
        let new =
            json!({"metadata": {"name": "a", "labels": {"x": "y"}, "finalizers": ["x.io/a"]}, "data": {"k": "v"}});
        let found = compare(&old, &new, builtin());
        let expected = json!({
            "f:data": {".": {}, "f:k": {}},
            "f:metadata": {"f:labels": {".": {}, "f:x": {}}, "f:finalizers": {".": {}, "v:\"x.io/a\"": {}}},
        });
        assert_eq!(found.added.to_json(), expected);
        let back = compare(&new, &old, builtin());
        assert_eq!(back.removed.to_json(), expected);
    }

    #[test]
    fn mentions_leaves_and_items_only() {
        let applied = json!({"spec": {"containers": [{"name": "a", "image": "i"}]}, "data": {}});
        let expected = json!({
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:image": {}}}},
            "f:data": {},
        });
        assert_eq!(mentioned(&applied, builtin()).to_json(), expected);
        assert_eq!(Set::from_json(&expected).unwrap().to_json(), expected);
    }

    #[test]
    fn removes_what_nobody_else_keeps() {
        let set = |json: Value| Set::from_json(&json).unwrap();
        let mut value = json!({"spec": {"l": 1}, "data": {"a": "1", "b": "2"}});
        let gone = set(json!({"f:data": {".": {}, "f:a": {}}, "f:spec": {".": {}, "f:l": {}}}));
        remove(&mut value, &gone, &set(json!({"f:data": {"f:b": {}}})), builtin());
        assert_eq!(value, json!({"data": {"b": "2"}}));
    }

    #[test]
    fn prints_paths() {
        let set = Set::from_json(&json!({"f:spec": {"f:l": {"k:{\"name\":\"a\"}": {"f:v": {}}}}})).unwrap();
        assert_eq!(set.paths(), [".spec.l[name=\"a\"].v"]);
    }
}
