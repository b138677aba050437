use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

use crate::{
    manager::Manager,
    object::{ObjectId, Uid},
};

const READABLE: usize = 24;
const HASH_BYTES: usize = 12;

/// The name of the proxies of `parent`: the start of the parent's name, for people, and a hash of the manager's domain
/// and the parent's identity, which tells any two parents apart.
///
/// It is a DNS label of at most 63 characters, whatever the parent is called. The parent's UID has no part in
/// it. Generation 0 is the first; a proxy that is terminating while its parent lives is replaced under the name of the
/// next, because the name of a terminating object cannot be taken. Identity is read from fields, never from a name.
#[must_use]
pub fn proxy_name(manager: &Manager, parent: &ObjectId, generation: u32) -> String {
    let stem = stem(manager, parent);
    match generation {
        0 => stem,
        _ => format!("{stem}-{generation}"),
    }
}

/// Which generation of the proxies of `parent` is called `name`; `None` if it is none of them.
#[must_use]
pub fn proxy_generation(manager: &Manager, parent: &ObjectId, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(&stem(manager, parent))?;
    if rest.is_empty() {
        return Some(0);
    }
    let generation = rest.strip_prefix('-')?.parse().ok()?;
    (proxy_name(manager, parent, generation) == name).then_some(generation)
}

/// The UIDs in the references of `live` to proxies of `parent`, past and present.
///
/// Told by the name alone, which nobody else's owner has. A UID on record would not do: a record lacks that of a proxy
/// whose creation a crash followed, and it can be made to name the UID of anything by whoever may write it.
#[must_use]
pub(crate) fn proxy_references(manager: &Manager, parent: &ObjectId, live: &ObjectMeta) -> BTreeSet<Uid> {
    let references = live.owner_references.iter().flatten();
    let ours = references.filter(|reference| proxy_generation(manager, parent, &reference.name).is_some());
    ours.filter_map(|reference| Uid::new(&reference.uid).ok()).collect()
}

fn stem(manager: &Manager, parent: &ObjectId) -> String {
    let digest = Sha256::new()
        .chain_update(manager.as_str())
        .chain_update("\0")
        .chain_update(parent.stable_id().as_bytes())
        .finalize();
    let hash: String = digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let readable = readable(parent.name()).or_else(|| readable(parent.kind())).unwrap_or_default();
    format!("{readable}-{hash}")
}

/// What of `text` can start a DNS label.
fn readable(text: &str) -> Option<String> {
    let mapped = text.chars().map(|c| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
        _ => '-',
    });
    let cut: String = mapped.skip_while(|c| *c == '-').take(READABLE).collect();
    let cut = cut.trim_end_matches('-');
    (!cut.is_empty()).then(|| cut.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        object::is_dns_subdomain,
        ownership::testing::{any_id, id, manager},
    };

    #[test]
    fn names_are_stable_readable_and_numbered() {
        let parent = id("GitTrack.faros.pusher.com a/my.track");
        let name = proxy_name(&manager(), &parent, 0);
        assert_eq!(name, "my-track-51a14aa6a56a9d43d3542a50");
        assert_eq!(proxy_name(&manager(), &parent, 2), format!("{name}-2"));
    }

    #[test]
    fn managers_and_scopes_do_not_meet() {
        let other = Manager::new("other.example.com").unwrap();
        let parent = id("GitTrack.faros.pusher.com a/track");
        let names = [
            proxy_name(&manager(), &parent, 0),
            proxy_name(&other, &parent, 0),
            proxy_name(&manager(), &id("GitTrack.faros.pusher.com b/track"), 0),
            proxy_name(&manager(), &id("ClusterGitTrack.faros.pusher.com track"), 0),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn only_own_names_have_a_generation() {
        let parent = id("GitTrack.faros.pusher.com a/track");
        let name = proxy_name(&manager(), &parent, 0);
        for other in
            ["", "track", &format!("{name}x"), &format!("{name}-0"), &format!("{name}-01"), &format!("{name}-+1")]
        {
            assert_eq!(proxy_generation(&manager(), &parent, other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn s10_every_parent_gets_a_legal_name_of_its_own(a in any_id(), b in any_id(), n: u32, m in 0..3_u32) {
            let name = proxy_name(&manager(), &a, n);
            prop_assert!(is_dns_subdomain(&name) && name.len() <= 63, "{name}");
            prop_assert_eq!(proxy_generation(&manager(), &a, &name), Some(n));
            prop_assert_eq!(name == proxy_name(&manager(), &b, m), a == b && n == m);
        }
    }
}
