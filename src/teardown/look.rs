//! Looking at many objects before they are deleted, by lists where that is cheaper than a GET each.
//!
//! What a list shows is where judging begins; what it does not show is asked for object by object, and proves nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kube_client::{Client, api::ListParams};

use super::{executor::DEFAULT_CONCURRENCY, live::Live, wakes::identify, watching::Extent};
use crate::{
    answer::{self, Answer},
    api::{first_page, metadata_api, pages},
    discovery::{Crd, Resolution, Resolver},
    object::{GroupKind, ObjectId, ResourceKind, Scope},
};

/// Fewer objects than this in one place are asked for one by one.
const WORTH_A_LIST: usize = 3;
/// A kind in at least so many namespaces is listed everywhere at once, if there is a selector.
const WIDE: usize = 3;
/// Most objects on a page.
const PAGE: usize = 1000;

/// One list that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List {
    extent: Extent,
    /// Most pages, so that the cost does not grow with what else is there.
    pages: usize,
    limit: u32,
}

impl List {
    fn new(kind: &GroupKind, namespace: Option<&str>, objects: usize) -> Self {
        let limit = (objects.saturating_mul(2)).clamp(50, PAGE);
        let extent = Extent::Selected { kind: kind.clone(), namespace: namespace.map(ToOwned::to_owned) };
        Self { extent, pages: 1 + 2 * objects / limit + objects / 100, limit: u32::try_from(limit).unwrap_or(500) }
    }
}

/// Which lists to make of one kind; `objects` counts them by namespace.
fn lists(kind: &ResourceKind, objects: &BTreeMap<Option<&str>, usize>, selector: bool) -> Vec<List> {
    let gk = kind.group_kind();
    let all: usize = objects.values().sum();
    if kind.scope == Scope::Namespaced && selector && objects.len() >= WIDE {
        return vec![List::new(&gk, None, all)];
    }
    let places = objects.iter().filter(|(namespace, count)| {
        let right_scope = namespace.is_some() == (kind.scope == Scope::Namespaced);
        right_scope && **count >= WORTH_A_LIST
    });
    places.map(|(namespace, count)| List::new(&gk, *namespace, *count)).collect()
}

/// How a kind is served.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) resource: ResourceKind,
    pub(super) defined_by_crd: bool,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Looked {
    pub(super) kinds: BTreeMap<GroupKind, Found>,
    pub(super) live: BTreeMap<ObjectId, Live>,
    /// What was listed with the selector, with the version that a watch can go on from.
    pub(super) listed: BTreeMap<Extent, String>,
}

/// Where and how to look.
pub(super) struct Look<'a> {
    pub(super) client: &'a Client,
    pub(super) resolver: &'a Resolver,
    pub(super) kinds: &'a BTreeMap<GroupKind, ResourceKind>,
    pub(super) selector: Option<&'a str>,
}

impl Look<'_> {
    pub(super) async fn at(&self, objects: Vec<ObjectId>) -> Looked {
        let mut by_kind: BTreeMap<GroupKind, Vec<ObjectId>> = BTreeMap::new();
        for id in objects {
            by_kind.entry(id.group_kind()).or_default().push(id);
        }
        let mut looked = Looked::default();
        let kinds: Vec<_> = by_kind.iter().map(|(kind, objects)| self.at_kind(kind, objects).boxed()).collect();
        let mut seen = stream::iter(kinds).buffer_unordered(DEFAULT_CONCURRENCY);
        while let Some(of_kind) = seen.next().await {
            looked.kinds.extend(of_kind.kinds);
            looked.live.extend(of_kind.live);
            looked.listed.extend(of_kind.listed);
        }
        looked
    }

    async fn at_kind(&self, kind: &GroupKind, objects: &[ObjectId]) -> Looked {
        let mut looked = Looked::default();
        let resource = match self.kinds.get(kind) {
            Some(resource) => resource.clone(),
            None => match self.resolver.resolve(kind).await {
                Resolution::Served(resource) => resource,
                _ => return looked,
            },
        };
        let defined_by_crd = matches!(self.resolver.crd_of(&resource).await, Crd::Present(_));
        looked.kinds.insert(kind.clone(), Found { resource: resource.clone(), defined_by_crd });
        let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        objects.iter().for_each(|id| *counts.entry(id.namespace()).or_default() += 1);
        let planned = lists(&resource, &counts, self.selector.is_some());
        let wide = planned.iter().any(|list| matches!(&list.extent, Extent::Selected { namespace: None, .. }));
        let refused = self.make(&resource, planned, objects, &mut looked).await;
        if refused && wide && resource.scope == Scope::Namespaced {
            self.make(&resource, lists(&resource, &counts, false), objects, &mut looked).await;
        }
        looked
    }

    /// Makes lists. Returns whether one was forbidden.
    async fn make(
        &self,
        resource: &ResourceKind,
        planned: Vec<List>,
        objects: &[ObjectId],
        looked: &mut Looked,
    ) -> bool {
        let wanted: HashSet<&ObjectId> = objects.iter().collect();
        let lists: Vec<_> = planned.iter().map(|list| self.list(resource, list, &wanted).boxed()).collect();
        let mut answers = stream::iter(lists).buffer_unordered(DEFAULT_CONCURRENCY);
        let mut refused = false;
        while let Some(answer) = answers.next().await {
            match answer {
                Some((extent, version, live)) => {
                    looked.live.extend(live);
                    if self.selector.is_some() {
                        looked.listed.insert(extent, version);
                    }
                }
                None => refused = true,
            }
        }
        refused
    }

    /// One list, page by page, until everything wanted was seen or the pages are used up; `None` if it is not allowed.
    async fn list(
        &self,
        resource: &ResourceKind,
        list: &List,
        wanted: &HashSet<&ObjectId>,
    ) -> Option<(Extent, String, BTreeMap<ObjectId, Live>)> {
        let namespace = match &list.extent {
            Extent::Selected { namespace, .. } => namespace.as_deref(),
            Extent::Named(id) => id.namespace(),
        };
        let left = wanted.iter().filter(|id| list.extent.covers(id)).count();
        let api = metadata_api(self.client, resource, namespace);
        let (kind, mut version, mut live) = (resource.group_kind(), String::new(), BTreeMap::new());
        let first = ListParams { limit: Some(list.limit), ..first_page(self.selector) };
        let mut pages = pages(api, first).take(list.pages);
        loop {
            let page = match pages.try_next().await {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(error) if matches!(answer::classify(&error), Answer::Forbidden) => return None,
                // What was not seen is asked for.
                Err(_) => break,
            };
            if version.is_empty() {
                version = page.metadata.resource_version.unwrap_or_default();
            }
            let ours = page.items.iter().filter_map(|item| identify(&kind, &item.metadata));
            live.extend(ours.filter(|(id, _)| wanted.contains(id)));
            if live.len() == left {
                break;
            }
        }
        Some((list.extent.clone(), version, live))
    }
}

/// The objects that lists with a selector showed: a watch with it reports their end.
pub(super) fn selected(looked: &Looked) -> BTreeSet<ObjectId> {
    let in_lists = |id: &ObjectId| looked.listed.keys().any(|extent| extent.covers(id));
    looked.live.keys().filter(|id| in_lists(id)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> ResourceKind {
        ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
    }

    fn places(lists: &[List]) -> Vec<Option<&str>> {
        let place = |list: &'_ List| match &list.extent {
            Extent::Selected { namespace, .. } => namespace.clone(),
            Extent::Named(_) => None,
        };
        let found: Vec<_> = lists.iter().map(place).collect();
        found.iter().map(|p| p.as_deref().map(|p| if p == "a" { "a" } else { "b" })).collect()
    }

    #[test]
    fn few_objects_are_asked_for_one_by_one() {
        assert!(lists(&maps(), &BTreeMap::from([(Some("a"), 2), (Some("b"), 1)]), false).is_empty());
    }

    #[test]
    fn each_namespace_with_many_is_listed() {
        let counts = BTreeMap::from([(Some("a"), 1000), (Some("b"), 40), (Some("c"), 1)]);
        assert_eq!(places(&lists(&maps(), &counts, false)), [Some("a"), Some("b")]);
    }

    #[test]
    fn many_namespaces_are_listed_at_once_if_a_selector_bounds_that() {
        let counts = BTreeMap::from([(Some("a"), 1), (Some("b"), 1), (Some("c"), 1)]);
        assert_eq!(places(&lists(&maps(), &counts, true)), [None]);
    }

    #[test]
    fn what_a_list_may_cost_grows_with_the_objects_wanted_only() {
        for objects in [3, 50, 500, 5_000, 100_000] {
            let list = List::new(&maps().group_kind(), Some("a"), objects);
            assert!(list.pages <= 2 + objects / 50, "{list:?}");
            assert!(list.pages * list.limit as usize >= objects, "{list:?}");
        }
    }
}
