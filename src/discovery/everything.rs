//! Every kind that is served, for searches that must not miss one.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;

use super::{Freshness, Lookup, Resolver, is_built_in};
use crate::object::ResourceKind;

/// Groups that are asked at the same time.
const AT_ONCE: usize = 8;

/// All kinds whose objects can be listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Everything {
    /// Each kind in one version, in order.
    pub kinds: Vec<ResourceKind>,
    /// What may hide further kinds, in words. Only if it is empty are the kinds known to be all.
    pub unavailable: Vec<String>,
}

impl Resolver {
    /// Every kind whose objects can be listed.
    ///
    /// One request for the groups, one for each group and version, and one list of the metadata of all
    /// CustomResourceDefinitions: a restarting API server answers without the groups of custom resources, and only the
    /// definitions show what is missing then.
    ///
    /// # Permissions
    /// `list` on `customresourcedefinitions`; without it the answer says that there may be more.
    pub async fn everything(&self) -> Everything {
        let mut all = Everything::default();
        let mut groups = BTreeSet::from([String::new()]);
        match self.get::<APIGroupList>("/apis").await {
            Ok(Some(list)) => groups.extend(list.groups.into_iter().map(|group| group.name)),
            Ok(None) => all.unavailable.push("404 at /apis: this is no API server".into()),
            Err(reason) => all.unavailable.push(reason),
        }
        let (defined, hidden) = self.defined().await;
        all.unavailable.extend(hidden);
        groups.extend(defined.iter().map(|(_, group)| group.clone()));
        let look_ups = groups.into_iter().map(|group| async move {
            let found = self.ask(&self.slot(&group), &group, Freshness::New).await;
            (group, found)
        });
        let mut found: Vec<_> = stream::iter(look_ups).buffer_unordered(AT_ONCE).collect().await;
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (group, lookup) in &found {
            let here = defined.iter().filter(|(_, of)| of == group);
            let missing = match &**lookup {
                Lookup::Unavailable(reason) => {
                    all.unavailable.push(format!("group {group:?}: {reason}"));
                    continue;
                }
                Lookup::NoSuchGroup => here.collect::<Vec<_>>(),
                Lookup::Found(served) => {
                    all.kinds.extend(served.listable());
                    all.unavailable.extend(served.unavailable().map(|reason| format!("group {group:?}: {reason}")));
                    here.filter(|(plural, _)| !served.serves_plural(plural)).collect()
                }
            };
            let words =
                |(plural, group): &(String, String)| format!("{plural}.{group} is defined, but not served at present");
            all.unavailable.extend(missing.into_iter().map(words));
        }
        all.kinds.sort();
        all
    }

    /// Plural and group of every custom resource, and what hides others.
    async fn defined(&self) -> (Vec<(String, String)>, Option<String>) {
        let (mut pages, mut found) = (self.definitions(), Vec::new());
        loop {
            let page = match self.within(pages.try_next()).await {
                Ok(Some(page)) => page,
                Ok(None) => return (found, None),
                Err(trouble) => return (found, Some(format!("CustomResourceDefinitions cannot be listed: {trouble}"))),
            };
            let names = page.items.into_iter().filter_map(|item| item.metadata.name);
            let parts = names.filter_map(|name| name.split_once('.').map(|(p, g)| (p.to_owned(), g.to_owned())));
            found.extend(parts.filter(|(_, group)| !is_built_in(group)));
        }
    }
}
