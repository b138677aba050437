//! Where a parent's children live, as the author says it.
//!
//! Says nothing about what is found there: a target is a client and what it is called.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::core::v1::Secret;
use kube_client::Client;
use sha2::{Digest, Sha256};

use crate::{answer::Refusal, object::ObjectId};

/// What a client is called, so that parents with the same one share it, with its watches and all that was learned
/// through it.
///
/// Has to tell apart clients of different clusters and of different identities, and the credentials of different
/// tenants: parents whose targets are called alike work through one client. A key has a *generation* besides:
/// with another generation, as after credentials were rotated, the new client takes the place of the old one.
#[derive(Clone, PartialEq, Eq)]
pub struct TargetKey {
    name: String,
    generation: Vec<u8>,
}

impl TargetKey {
    /// A key with this name. [`of_secret`](Self::of_secret) names clients that are made from a Secret.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), generation: Vec::new() }
    }

    /// Sets what changes whenever the client has to be replaced by a new one. Compared for equality only.
    #[must_use]
    pub fn generation(mut self, generation: impl Into<Vec<u8>>) -> Self {
        self.generation = generation.into();
        self
    }

    /// The key of a client that is made from `secret`: namespace, name and UID, with the content as the generation.
    ///
    /// The generation is a hash that stays in memory. The Secret's resource version would not do: it changes with every
    /// hold, label or annotation, and with its deletion.
    #[must_use]
    pub fn of_secret(secret: &Secret) -> Self {
        let meta = &secret.metadata;
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let name = format!("secret/{}/{}/{}", part(&meta.namespace), part(&meta.name), part(&meta.uid));
        let mut hash = Sha256::new();
        for (key, value) in secret.data.iter().flatten() {
            for part in [key.as_bytes(), value.0.as_slice()] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        Self::new(name).generation(hash.finalize().to_vec())
    }

    pub(super) fn into_parts(self) -> (String, Vec<u8>) {
        (self.name, self.generation)
    }
}

impl From<&str> for TargetKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for TargetKey {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// Without the generation, which may be made from credentials.
impl fmt::Debug for TargetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetKey").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where the children of one parent live, and who creates and deletes them. Given by the hook
/// [`Builder::target`](super::Builder::target).
#[derive(Clone)]
#[must_use]
pub struct Target {
    pub(super) place: Place,
    pub(super) proxies: bool,
    pub(super) holds: BTreeSet<ObjectId>,
}

#[derive(Clone)]
pub(super) enum Place {
    Home,
    Other { key: TargetKey, client: Client, reach: Reach },
}

/// How far away a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// The home cluster, by the custodian's own client.
    Home,
    /// The home cluster, as somebody else.
    SameCluster,
    /// Another API server, whose identity has to be asked for again and again.
    Remote,
}

impl Target {
    /// The home cluster, through the custodian's own client: what is used without a hook.
    pub fn home() -> Self {
        Self { place: Place::Home, proxies: true, holds: BTreeSet::new() }
    }

    /// Another cluster, through `client`.
    ///
    /// The cluster is identified by the UID of its namespace `kube-system`, which `client` has to be allowed to read.
    /// It is asked for in every reconcile, since whatever answers at the address may be replaced, and again before anything
    /// is recorded as gone.
    ///
    /// Without proxy owners, unless [`proxies`](Self::proxies) says otherwise.
    pub fn remote(key: impl Into<TargetKey>, client: Client) -> Self {
        Self::other(key.into(), client, Reach::Remote)
    }

    /// The home cluster, through a client that acts as somebody else: the ServiceAccount of a tenant, say, whose rights then
    /// bound what the tenant's parents can do.
    ///
    /// The author vouches that `client` speaks to the home cluster. Parents, inventories, finalizers and holds stay with
    /// the custodian's own client. Without proxy owners, unless [`proxies`](Self::proxies) says otherwise: the identity
    /// would need rights on them.
    ///
    /// [`hold`](Self::hold) what the identity rests on, such as the ServiceAccount and its RoleBinding: without them nobody
    /// can delete the children.
    pub fn impersonating(key: impl Into<TargetKey>, client: Client) -> Self {
        Self::other(key.into(), client, Reach::SameCluster)
    }

    fn other(key: TargetKey, client: Client, reach: Reach) -> Self {
        Self { place: Place::Other { key, client, reach }, proxies: false, holds: BTreeSet::new() }
    }

    /// Sets whether the custodian's proxy owners are used there, if it has any. Their definitions have to be installed in
    /// the target's cluster. A proxy names its parent together with the parent's cluster, and carries no reference.
    pub fn proxies(mut self, proxies: bool) -> Self {
        self.proxies = proxies;
        self
    }

    /// Names an object of the home cluster that the target cannot be reached without, such as the Secret with the
    /// credentials. It gets a hold finalizer before the first child is created, and keeps it until the parent is let go,
    /// whatever is deleted first. Where it cannot be held, nothing is applied.
    ///
    /// A held Secret that is deleted stays readable, but it cannot be recreated before the parent is gone: rotate
    /// credentials by changing the Secret, not by replacing it. The rights are those of
    /// [`Builder::hold`](super::Builder::hold).
    pub fn hold(mut self, object: ObjectId) -> Self {
        self.holds.insert(object);
        self
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Target");
        match &self.place {
            Place::Home => out.field("reach", &Reach::Home),
            Place::Other { key, reach, .. } => out.field("reach", reach).field("key", key),
        };
        out.field("proxies", &self.proxies).field("holds", &self.holds).finish()
    }
}

/// Why the target of a parent cannot be had now, in words that are shown in conditions.
///
/// Made from words of the author's choosing and from refusals whose message is dropped, since the error of a parser
/// may quote what it read, and that may be a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Unavailable {
    words: String,
}

impl Unavailable {
    /// In these words. Put nothing of a Secret's content into them.
    #[must_use]
    pub fn new(words: impl Into<String>) -> Self {
        Self { words: words.into() }
    }

    /// The object with the credentials could not be read. Code and reason are shown, the message is not.
    #[must_use]
    pub fn reading(id: &ObjectId, error: &kube_client::Error) -> Self {
        let refusal = Refusal::discreet(error);
        Self::new(format!("{id} could not be read: {refusal}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    fn secret(version: &str, uid: &str, data: &[(&str, &str)]) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some("credentials".into()),
                namespace: Some("a".into()),
                uid: Some(uid.into()),
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            },
            data: Some(data.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect()),
            ..Secret::default()
        }
    }

    #[test]
    fn a_key_changes_with_the_content_of_the_secret_only() {
        let key = TargetKey::of_secret(&secret("1", "u", &[("value", "x")]));
        assert_eq!(key, TargetKey::of_secret(&secret("2", "u", &[("value", "x")])), "a hold was put on it");
        assert_ne!(key, TargetKey::of_secret(&secret("1", "u", &[("value", "y")])));
        assert_ne!(key, TargetKey::of_secret(&secret("1", "v", &[("value", "x")])));
        let split = |data: &[(&str, &str)]| TargetKey::of_secret(&secret("1", "u", data));
        assert_ne!(split(&[("a", "bc")]), split(&[("ab", "c")]));
    }

    #[test]
    fn nothing_shows_what_a_key_is_made_from() {
        let key = TargetKey::new("n").generation("hunter2");
        assert!(!format!("{key:?}").contains("104, 117"), "{key:?}");
        let target = Unavailable::reading(
            &"Secret a/credentials".parse().unwrap(),
            &kube_client::Error::SerdeError(serde_json::from_str::<u8>("\"hunter2\"").unwrap_err()),
        );
        assert!(!target.to_string().contains("hunter2"), "{target}");
    }
}
