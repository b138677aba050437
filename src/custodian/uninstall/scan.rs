//! Looking for everything that carries the manager's keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use futures::{FutureExt, StreamExt, stream};
use kube_core::Resource;
use serde::de::DeserializeOwned;

use super::traces::{Behind, Finding, Part, Sighting, findings};
use crate::{
    answer::Answer,
    api::{each_metadata, find_metadata},
    custodian::{Custodian, Inner, site::Site},
    discovery::{Crd, Resolution},
    object::{GroupKind, LiveRef, ResourceKind, Scope, Uid},
};

/// Lists that are made, and parents that are read, at the same time.
const AT_ONCE: usize = 8;

/// How wide a scan looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breadth {
    /// Objects with the manager's label, of every kind, and all parents of the kind. The API server selects, and the
    /// answers are as large as what is found. What lost its label, what is only held, and what only refers to a proxy is
    /// not seen.
    Labelled,
    /// The metadata of every object in the cluster, page by page; only what is found is kept in memory. The one look that
    /// proves that nothing is left.
    #[default]
    Everything,
}

/// What a scan could not look at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// What: a kind, or a part of discovery.
    pub what: String,
    /// Why, in words; for a kind that may not be listed, the rule that is missing.
    pub words: String,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what.as_str() {
            "" => f.write_str(&self.words),
            what => write!(f, "{what}: {}", self.words),
        }
    }
}

/// What still carries the manager's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scan {
    /// How wide it looked.
    pub breadth: Breadth,
    /// What was found, in order.
    pub findings: Vec<Finding>,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
}

impl Scan {
    /// Whether everything was looked at, so that what was not found does not exist.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.breadth == Breadth::Everything && self.unseen.is_empty()
    }

    /// The findings of one part.
    pub fn of(&self, part: Part) -> impl Iterator<Item = &Finding> + '_ {
        self.findings.iter().filter(move |f| f.part == part)
    }
}

/// What is known of a parent that an object names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Existence {
    Lives,
    Gone,
    Unknown(String),
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Lists what still carries the manager's keys: parents, children, proxies, records, held objects, copies, and what
    /// refers to a proxy. Reads only.
    ///
    /// Looks at every kind that is served and can be listed, not only at those on some record, and at the cluster that the
    /// custodian's own client talks to. What cannot be looked at (a kind that may not be listed, a broken aggregated API,
    /// a definition that is not served at present) is named and hides nothing else.
    ///
    /// # Cost
    /// The requests of discovery, one list a kind (a page for each 500 objects), and one GET for each parent that is named
    /// and was not listed.
    ///
    /// # Permissions
    /// `list` on all resources of all groups, and `get` on parents that are named.
    pub async fn scan(&self, breadth: Breadth) -> Scan {
        self.inner.scan(&parent_resource::<K>(), breadth).await
    }
}

/// How requests for parents of a kind are spelled. The scope does not show in lists everywhere.
pub(super) fn parent_resource<K: Resource<DynamicType = ()>>() -> ResourceKind {
    ResourceKind::of::<K>(Scope::Namespaced)
}

impl Inner {
    pub(super) async fn scan(&self, parents: &ResourceKind, breadth: Breadth) -> Scan {
        let site = &self.home;
        let everything = site.resolver.everything().await;
        let mut unseen: Vec<_> =
            everything.unavailable.into_iter().map(|words| Unseen { what: String::new(), words }).collect();
        let lists = everything.kinds.into_iter().map(|resource| {
            let labelled = breadth == Breadth::Labelled && resource.group_kind() != parents.group_kind();
            let selector = labelled.then(|| self.manager.parent_label());
            async move { (self.look_at(site, &resource, selector.as_deref()).await, resource) }.boxed()
        });
        let lists: Vec<_> = lists.collect();
        let mut answers = stream::iter(lists).buffer_unordered(AT_ONCE);
        let mut seen = Vec::new();
        while let Some((answer, resource)) = answers.next().await {
            match answer {
                Ok(of_kind) => seen.extend(of_kind),
                Err(words) => unseen.push(Unseen { what: resource.group_kind().to_string(), words }),
            }
        }
        unseen.sort_by(|a, b| (&a.what, &a.words).cmp(&(&b.what, &b.words)));
        // Where that cannot be told, whatever names a cluster is taken for another one's.
        let here = site.cluster_id().await.ok();
        let mut found = findings(&self.manager, self.rulebook.proxies.as_ref(), here.as_ref(), seen);
        self.look_behind(site, &mut found).await;
        Scan { breadth, findings: found, unseen }
    }

    async fn look_at(
        &self,
        site: &Site,
        resource: &ResourceKind,
        selector: Option<&str>,
    ) -> Result<Vec<Sighting>, String> {
        let mut seen = Vec::new();
        let proxies = self.rulebook.proxies.as_ref();
        let listed = each_metadata(&site.client, resource, selector, |meta| {
            seen.extend(Sighting::of(&self.manager, proxies, resource, &meta));
        });
        match listed.await {
            Ok(()) => Ok(seen),
            Err(refusal) => Err(match refusal.answer() {
                Answer::Forbidden => format!(
                    "may not be listed; grant {{apiGroups: [{:?}], resources: [{}], verbs: [list]}}",
                    resource.group, resource.plural
                ),
                _ => refusal.to_string(),
            }),
        }
    }

    /// Finds out whether the parents that are named live.
    async fn look_behind(&self, site: &Site, found: &mut [Finding]) {
        let mut known: BTreeMap<LiveRef, Existence> = BTreeMap::new();
        for parent in found.iter().filter(|f| f.part == Part::Parent) {
            known.insert(parent.object.clone(), Existence::Lives);
        }
        let named: BTreeSet<_> = found
            .iter()
            .filter(|f| f.home.is_none())
            .flat_map(|f| &f.parents)
            .filter(|p| !known.contains_key(p))
            .cloned()
            .collect();
        let reads = named.into_iter().map(|parent| {
            async move {
                let existence = self.existence(site, &parent).await;
                (parent, existence)
            }
            .boxed()
        });
        let reads: Vec<_> = reads.collect();
        known.extend(stream::iter(reads).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
        let living: BTreeMap<Uid, LiveRef> =
            known.iter().filter(|(_, e)| **e == Existence::Lives).map(|(p, _)| (p.uid.clone(), p.clone())).collect();
        for finding in found {
            finding.behind = behind(finding, &known, &living);
        }
    }

    /// Whether a parent lives, read live. Gone is proven: by NotFound, by another incarnation under its name, or by the
    /// end of its kind.
    pub(super) async fn existence(&self, site: &Site, parent: &LiveRef) -> Existence {
        let kind: GroupKind = parent.id.group_kind();
        let resource = match site.resolver.resolve(&kind).await {
            Resolution::Served(resource) => resource,
            Resolution::Unavailable { reason } => return Existence::Unknown(reason),
            Resolution::NotServed => {
                return match site.resolver.crd_of_kind(&kind).await {
                    Crd::NotFound => Existence::Gone,
                    Crd::Present(_) => Existence::Unknown(format!("{kind} is defined, but not served at present")),
                    Crd::Unknown { reason } | Crd::Forbidden { reason } => Existence::Unknown(reason),
                };
            }
        };
        match find_metadata(&site.client, &resource, &parent.id).await {
            Ok(Some(meta)) if Uid::of(&meta).as_ref() == Some(&parent.uid) => Existence::Lives,
            Ok(_) => Existence::Gone,
            Err(refusal) => Existence::Unknown(refusal.words_for(&parent.id)),
        }
    }
}

fn behind(finding: &Finding, known: &BTreeMap<LiveRef, Existence>, living: &BTreeMap<Uid, LiveRef>) -> Behind {
    if finding.part == Part::Parent {
        return Behind::Lives(finding.object.clone());
    }
    if let Some(home) = &finding.home {
        return Behind::Unknown { words: format!("its home is another cluster ({home})") };
    }
    let by_label = finding.label.as_ref().and_then(|uid| living.get(uid));
    let lives = |p: &&LiveRef| known.get(*p) == Some(&Existence::Lives);
    if let Some(parent) = finding.parents.iter().find(lives).or(by_label) {
        return Behind::Lives(parent.clone());
    }
    let unknown = finding.parents.iter().find_map(|p| match known.get(p) {
        Some(Existence::Unknown(words)) => Some(words.clone()),
        _ => None,
    });
    match unknown {
        Some(words) => Behind::Unknown { words },
        None if finding.parents.is_empty() => Behind::Nobody,
        None => Behind::Gone,
    }
}
