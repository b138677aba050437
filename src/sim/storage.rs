//! Objects and their history.
//!
//! One counter numbers all writes, as etcd's revision does. Every kind has a table of its objects in the order of
//! their keys (`namespace/name`, compared as text, as etcd does) and a log of its changes, from which watches are
//! served and older states are worked out. Nothing here knows what the objects mean.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use serde_json::Value;

use super::catalogue::ResourceId;

/// One change of one object.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: Arc<str>,
    pub(super) before: Option<Arc<Value>>,
    pub(super) after: Option<Arc<Value>>,
}

/// The objects of one kind.
#[derive(Debug, Default)]
pub(super) struct Table {
    objects: BTreeMap<Arc<str>, Arc<Value>>,
    log: VecDeque<Change>,
    /// Changes up to this version are no longer told to clients.
    compacted: u64,
    /// Changes up to this version are no longer in the log.
    dropped: u64,
    waiting: BTreeMap<u64, Waker>,
}

/// The key of an object within its kind.
pub(super) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

impl Table {
    pub(super) fn get(&self, key: &str) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects in a namespace, or all, in the order of their keys, after `start` if that is given.
    pub(super) fn list<'a>(
        &'a self,
        namespace: Option<&str>,
        start: Option<&str>,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<Value>)> {
        let prefix = namespace.map(|namespace| format!("{namespace}/"));
        let from = match (start, &prefix) {
            (Some(start), _) => (start, false),
            (None, Some(prefix)) => (prefix.as_str(), true),
            (None, None) => ("", true),
        };
        let lower = if from.1 { std::ops::Bound::Included(from.0) } else { std::ops::Bound::Excluded(from.0) };
        self.objects
            .range::<str, _>((lower, std::ops::Bound::Unbounded))
            .take_while(move |(key, _)| prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix.as_str())))
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// The changes after a version, oldest first.
    pub(super) fn changes_after(&self, version: u64) -> impl Iterator<Item = &Change> {
        self.log.range(self.log.partition_point(|change| change.version <= version)..)
    }

    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// The table as it was after the write of this version; `None` if that is no longer known.
    pub(super) fn at(&self, version: u64) -> Option<Self> {
        if version < self.compacted {
            return None;
        }
        let mut objects = self.objects.clone();
        for change in self.log.iter().rev().take_while(|change| change.version > version) {
            match &change.before {
                Some(before) => objects.insert(Arc::clone(&change.key), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Some(Self { objects, ..Self::default() })
    }

    /// Whether nothing changed after this version.
    pub(super) fn is_current(&self, version: u64) -> bool {
        self.log.back().map_or(self.dropped, |change| change.version) <= version
    }

    /// Whether all changes after this version are in the log.
    pub(super) fn remembers(&self, version: u64) -> bool {
        version >= self.dropped
    }

    fn push(&mut self, change: Change, limit: usize) {
        self.log.push_back(change);
        while self.log.len() > limit {
            if let Some(old) = self.log.pop_front() {
                self.dropped = old.version;
                self.compacted = self.compacted.max(old.version);
            }
        }
        self.wake();
    }

    /// Wakes the watch `id` at the next change.
    pub(super) fn wait(&mut self, id: u64, waker: Waker) {
        self.waiting.insert(id, waker);
    }

    pub(super) fn wake(&mut self) {
        for (_, waker) in std::mem::take(&mut self.waiting) {
            waker.wake();
        }
    }
}

/// All tables.
#[derive(Debug)]
pub(super) struct Storage {
    version: u64,
    tables: BTreeMap<ResourceId, Table>,
    /// How many changes of a kind are kept.
    history: usize,
}

impl Storage {
    pub(super) fn new(history: usize) -> Self {
        Self { version: 1, tables: BTreeMap::new(), history }
    }

    /// The version of the last write.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn table(&mut self, resource: ResourceId) -> &mut Table {
        self.tables.entry(resource).or_default()
    }

    pub(super) fn find(&self, resource: ResourceId) -> Option<&Table> {
        self.tables.get(&resource)
    }

    pub(super) fn get(&self, resource: ResourceId, key: &str) -> Option<&Arc<Value>> {
        self.tables.get(&resource)?.get(key)
    }

    /// Stores an object, which gets the new version, and returns it.
    pub(super) fn put(&mut self, resource: ResourceId, key: &str, mut object: Value) -> Arc<Value> {
        self.version += 1;
        super::value::set(&mut object, "resourceVersion", Some(self.version.to_string().into()));
        let object = Arc::new(object);
        let (version, history) = (self.version, self.history);
        let table = self.table(resource);
        let before = table.objects.get(key).cloned();
        let key: Arc<str> = match table.objects.get_key_value(key) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(key),
        };
        table.objects.insert(Arc::clone(&key), Arc::clone(&object));
        table.push(Change { version, key, before, after: Some(Arc::clone(&object)) }, history);
        object
    }

    /// Takes an object away and returns its last state.
    pub(super) fn remove(&mut self, resource: ResourceId, key: &str) -> Option<Arc<Value>> {
        let table = self.tables.get_mut(&resource)?;
        let (key, before) = table.objects.remove_entry(key)?;
        self.version += 1;
        table.push(Change { version: self.version, key, before: Some(Arc::clone(&before)), after: None }, self.history);
        Some(before)
    }

    /// Forgets the objects of a whole kind. What was watching it ends, once it has been told what happened before.
    pub(super) fn retire(&mut self, resource: ResourceId) {
        if let Some(table) = self.tables.get_mut(&resource) {
            table.objects.clear();
            table.wake();
        }
    }

    /// Wakes all watches.
    pub(super) fn wake_all(&mut self) {
        self.tables.values_mut().for_each(Table::wake);
    }

    /// Lets clients no longer see the changes so far: an older version can't be watched or listed any more.
    pub(super) fn compact(&mut self) {
        for table in self.tables.values_mut() {
            table.compacted = self.version;
            table.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KIND: ResourceId = ResourceId(1);

    fn object(name: &str, data: u64) -> Value {
        json!({"metadata": {"name": name}, "data": data})
    }

    #[test]
    fn lists_in_the_order_of_whole_keys() {
        let mut storage = Storage::new(10);
        for key in ["a/x", "a-b/x", "a/y", "b/x"] {
            storage.put(KIND, key, object("x", 0));
        }
        let keys = |namespace, start| -> Vec<String> {
            storage.find(KIND).unwrap().list(namespace, start).map(|(key, _)| key.to_string()).collect()
        };
        assert_eq!(keys(None, None), ["a-b/x", "a/x", "a/y", "b/x"]);
        assert_eq!(keys(Some("a"), None), ["a/x", "a/y"]);
        assert_eq!(keys(Some("a"), Some("a/x")), ["a/y"]);
    }

    #[test]
    fn works_out_older_states() {
        let mut storage = Storage::new(10);
        storage.put(KIND, "a", object("a", 1));
        let then = storage.version();
        storage.put(KIND, "a", object("a", 2));
        storage.put(KIND, "b", object("b", 1));
        storage.remove(KIND, "a");
        let table = storage.find(KIND).unwrap();
        let old = table.at(then).unwrap();
        assert_eq!(old.len(), 1);
        assert_eq!(old.get("a").unwrap()["data"], 1);
        assert!(table.get("a").is_none());
        assert_eq!(table.changes_after(then).count(), 3);
    }

    #[test]
    fn keeps_a_bounded_history() {
        let mut storage = Storage::new(2);
        let first = storage.version();
        for data in 0..3 {
            storage.put(KIND, "a", object("a", data));
        }
        let table = storage.find(KIND).unwrap();
        assert!(table.at(first).is_none());
        assert!(table.at(table.compacted()).is_some());
    }
}
