//! Marks of other projects that ask not to delete an object.
//!
//! This module reads labels and annotations and says what each such mark asks for. It decides nothing about deletion: the
//! teardown does. A mark with a value that its project does not define still shows that somebody meant something, so it
//! keeps the object and is reported.

use std::{collections::BTreeMap, fmt};

/// What a mark asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The object is to be kept.
    Keep,
    /// The mark has a value that this crate does not know: the object is kept, and the mark reported.
    KeepUnknown,
    /// The API server is expected to refuse the DELETE (with 409) while something uses the object: it is tried, and a
    /// refusal reported as blocking.
    ExpectRefusal,
}

impl Verdict {
    /// Whether the object must not be deleted.
    #[must_use]
    pub fn keeps(self) -> bool {
        matches!(self, Self::Keep | Self::KeepUnknown)
    }
}

/// Where a mark was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "Kubernetes has these two")]
pub enum Place {
    /// In `metadata.annotations`.
    Annotation,
    /// In `metadata.labels`.
    Label,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Annotation => "annotation",
            Self::Label => "label",
        })
    }
}

/// A mark of another project on an object. Displays as what was found, for reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Marker {
    /// The key.
    pub key: &'static str,
    /// Where it stands.
    pub place: Place,
    /// The value (of a list the one item), cut to 80 characters.
    pub value: String,
    /// What it asks for.
    pub verdict: Verdict,
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {:?}", self.place, self.key, self.value)?;
        if self.verdict == Verdict::KeepUnknown { f.write_str(" (value not known)") } else { Ok(()) }
    }
}

/// Where a key is looked for.
#[derive(Clone, Copy)]
enum On {
    Annotation,
    Label,
    Either,
}

/// What a value asks for; `None` is nothing.
type Read = fn(&str) -> Option<Verdict>;

fn keep_if(keep: bool) -> Option<Verdict> {
    Some(if keep { Verdict::Keep } else { Verdict::KeepUnknown })
}

const SYNC_OPTIONS: &str = "argocd.argoproj.io/sync-options";

/// Every key with the values that its project defines, compared as that project compares them.
const MARKERS: &[(&str, On, Read)] = &[
    ("client.lifecycle.config.k8s.io/deletion", On::Annotation, |v| keep_if(v == "detach")),
    ("cli-utils.sigs.k8s.io/on-remove", On::Annotation, |v| keep_if(v == "keep")),
    ("helm.sh/resource-policy", On::Annotation, |v| keep_if(v.trim().eq_ignore_ascii_case("keep"))),
    ("kustomize.toolkit.fluxcd.io/prune", On::Either, |v| keep_if(v.eq_ignore_ascii_case("disabled"))),
    ("kustomize.toolkit.fluxcd.io/reconcile", On::Either, |v| keep_if(v.eq_ignore_ascii_case("disabled"))),
    ("fluxcd.controlplane.io/prune", On::Either, |v| keep_if(v.eq_ignore_ascii_case("disabled"))),
    ("kustomize.toolkit.fluxcd.io/ssa", On::Either, |v| {
        // These say how to apply, not whether to delete.
        let applies = ["Override", "Merge", "IfNotPresent"].iter().any(|mode| v.eq_ignore_ascii_case(mode));
        if applies { None } else { keep_if(v.eq_ignore_ascii_case("Ignore")) }
    }),
    (SYNC_OPTIONS, On::Annotation, sync_option),
    ("kapp.k14s.io/delete-strategy", On::Annotation, |v| keep_if(v == "orphan")),
    ("objectset.rio.cattle.io/prune", On::Label, |v| keep_if(v == "false")),
    ("crossplane.io/in-use", On::Label, |_| Some(Verdict::ExpectRefusal)),
    ("protection.fn.crossplane.io/block-deletion", On::Label, |v| keep_if(v == "true")),
    ("resourcetemplate.karmada.io/deletion-protected", On::Label, |v| keep_if(v == "Always")),
    ("policy.kruise.io/delete-protection", On::Label, |v| keep_if(matches!(v, "Always" | "Cascading"))),
];

/// One item of Argo CD's list. `confirm` keeps as well: the approval that would lift it is not on this object.
fn sync_option(item: &str) -> Option<Verdict> {
    if matches!(item, "Prune=false" | "Delete=false" | "Prune=confirm" | "Delete=confirm") {
        return Some(Verdict::Keep);
    }
    let (option, _) = item.split_once('=')?;
    let option = option.trim();
    let meant = option.eq_ignore_ascii_case("Prune") || option.eq_ignore_ascii_case("Delete");
    meant.then_some(Verdict::KeepUnknown)
}

/// The marks among an object's labels and annotations, in order of key, place and value.
#[must_use]
pub fn read(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Vec<Marker> {
    let mut found = Vec::new();
    for &(key, on, read) in MARKERS {
        let places = [(Place::Annotation, annotations), (Place::Label, labels)];
        for (place, map) in places {
            if matches!((on, place), (On::Annotation, Place::Label) | (On::Label, Place::Annotation)) {
                continue;
            }
            let Some(value) = map.get(key) else { continue };
            let items: Vec<&str> =
                if key == SYNC_OPTIONS { value.split(',').map(str::trim).collect() } else { vec![value] };
            found.extend(items.into_iter().filter_map(|item| {
                let value = item.chars().take(80).collect();
                read(item).map(|verdict| Marker { key, place, value, verdict })
            }));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::{Place::*, Verdict::*, *};

    fn one(place: Place, key: &str, value: &str) -> Vec<(Place, String, Verdict)> {
        let set = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let empty = BTreeMap::new();
        let found = match place {
            Annotation => read(&empty, &set),
            Label => read(&set, &empty),
        };
        assert!(found.iter().all(|m| m.key == key));
        found.into_iter().map(|m| (m.place, m.value, m.verdict)).collect()
    }

    #[test]
    fn every_row_of_the_table() {
        let both = [Annotation, Label].as_slice();
        let annotation = [Annotation].as_slice();
        let label = [Label].as_slice();
        for (key, places, value, verdict) in [
            ("client.lifecycle.config.k8s.io/deletion", annotation, "detach", Some(Keep)),
            ("client.lifecycle.config.k8s.io/deletion", annotation, "Detach", Some(KeepUnknown)),
            ("cli-utils.sigs.k8s.io/on-remove", annotation, "keep", Some(Keep)),
            ("cli-utils.sigs.k8s.io/on-remove", annotation, "kept", Some(KeepUnknown)),
            ("helm.sh/resource-policy", annotation, " Keep ", Some(Keep)),
            ("helm.sh/resource-policy", annotation, "delete", Some(KeepUnknown)),
            ("kustomize.toolkit.fluxcd.io/prune", both, "Disabled", Some(Keep)),
            ("kustomize.toolkit.fluxcd.io/prune", both, "enabled", Some(KeepUnknown)),
            ("kustomize.toolkit.fluxcd.io/reconcile", both, "disabled", Some(Keep)),
            ("kustomize.toolkit.fluxcd.io/reconcile", both, "", Some(KeepUnknown)),
            ("fluxcd.controlplane.io/prune", both, "DISABLED", Some(Keep)),
            ("fluxcd.controlplane.io/prune", both, "no", Some(KeepUnknown)),
            ("kustomize.toolkit.fluxcd.io/ssa", both, "ignore", Some(Keep)),
            ("kustomize.toolkit.fluxcd.io/ssa", both, "Override", None),
            ("kustomize.toolkit.fluxcd.io/ssa", both, "merge", None),
            ("kustomize.toolkit.fluxcd.io/ssa", both, "IfNotPresent", None),
            ("kustomize.toolkit.fluxcd.io/ssa", both, "Replace", Some(KeepUnknown)),
            ("argocd.argoproj.io/sync-options", annotation, "Prune=false", Some(Keep)),
            ("argocd.argoproj.io/sync-options", annotation, "Delete=false", Some(Keep)),
            ("argocd.argoproj.io/sync-options", annotation, "Prune=confirm", Some(Keep)),
            ("argocd.argoproj.io/sync-options", annotation, "Delete=confirm", Some(Keep)),
            ("argocd.argoproj.io/sync-options", annotation, "Prune=true", Some(KeepUnknown)),
            ("argocd.argoproj.io/sync-options", annotation, "prune=false", Some(KeepUnknown)),
            ("argocd.argoproj.io/sync-options", annotation, "Delete = false", Some(KeepUnknown)),
            ("argocd.argoproj.io/sync-options", annotation, "PruneLast=true", None),
            ("argocd.argoproj.io/sync-options", annotation, "ServerSideApply=true", None),
            ("kapp.k14s.io/delete-strategy", annotation, "orphan", Some(Keep)),
            ("kapp.k14s.io/delete-strategy", annotation, "Orphan", Some(KeepUnknown)),
            ("objectset.rio.cattle.io/prune", label, "false", Some(Keep)),
            ("objectset.rio.cattle.io/prune", label, "true", Some(KeepUnknown)),
            ("crossplane.io/in-use", label, "true", Some(ExpectRefusal)),
            ("crossplane.io/in-use", label, "yes", Some(ExpectRefusal)),
            ("protection.fn.crossplane.io/block-deletion", label, "true", Some(Keep)),
            ("protection.fn.crossplane.io/block-deletion", label, "false", Some(KeepUnknown)),
            ("resourcetemplate.karmada.io/deletion-protected", label, "Always", Some(Keep)),
            ("resourcetemplate.karmada.io/deletion-protected", label, "always", Some(KeepUnknown)),
            ("policy.kruise.io/delete-protection", label, "Always", Some(Keep)),
            ("policy.kruise.io/delete-protection", label, "Cascading", Some(Keep)),
            ("policy.kruise.io/delete-protection", label, "Never", Some(KeepUnknown)),
        ] {
            for place in [Annotation, Label] {
                let expected: Vec<_> = verdict
                    .filter(|_| places.contains(&place))
                    .map(|verdict| (place, value.to_owned(), verdict))
                    .into_iter()
                    .collect();
                assert_eq!(one(place, key, value), expected, "{place} {key}={value}");
            }
        }
    }

    #[test]
    fn each_item_of_a_list_counts() {
        let found = one(Annotation, SYNC_OPTIONS, "Validate=false, Prune=false,Delete=maybe,,PruneLast=true");
        let found: Vec<_> = found.into_iter().map(|(_, value, verdict)| (value, verdict)).collect();
        assert_eq!(found, [("Delete=maybe".into(), KeepUnknown), ("Prune=false".into(), Keep)]);
        assert!(found.iter().all(|(_, verdict)| verdict.keeps()) && !ExpectRefusal.keeps());
    }

    #[test]
    fn marks_come_in_order_of_key_and_place() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let labels =
            map(&[("kustomize.toolkit.fluxcd.io/prune", "disabled"), ("crossplane.io/in-use", "true"), ("a", "b")]);
        let annotations = map(&[("kustomize.toolkit.fluxcd.io/prune", "off"), ("helm.sh/resource-policy", "keep")]);
        let shown: Vec<_> = read(&labels, &annotations).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "label crossplane.io/in-use: \"true\"",
                "annotation helm.sh/resource-policy: \"keep\"",
                "annotation kustomize.toolkit.fluxcd.io/prune: \"off\" (value not known)",
                "label kustomize.toolkit.fluxcd.io/prune: \"disabled\"",
            ]
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let found = one(Annotation, "helm.sh/resource-policy", &"x".repeat(10_000));
        assert_eq!(found, [(Annotation, "x".repeat(80), KeepUnknown)]);
    }
}
