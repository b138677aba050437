//! PUT and PATCH: changes of an object that exists, and what an apply does with one that does not.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    create::review,
    prepare::{check_custom, check_place, check_type, fill_new, normalize},
};
use crate::sim::{
    admission::Operation,
    catalogue::Role,
    managers,
    meta::{differs_in_spec, generation, may_vanish, validate, validate_update},
    patch,
    request::{Ask, PatchKind, Payload},
    status::{FieldError, MODIFIED, Refusal, bad_request, conflict, internal, invalid, invalid_as, not_found},
    storage::key,
    value::{copy, is_deleting, map, meta, meta_mut, name, namespace, set, text, uid, version},
    world::{Reply, World, shape_of},
};

impl World {
    pub(in crate::sim) fn update(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        let Payload::Object(sent) = &ask.payload else { return Err(internal("an update has an object")) };
        check_type(ask, sent)?;
        let mut new = sent.clone();
        check_place(ask, &mut new)?;
        let live = self.stored(ask).ok_or_else(|| not_found(&ask.resource, &ask.name))?;
        if !uid(&new).is_empty() && uid(&new) != uid(&live) {
            let path = if ask.resource.group.is_empty() || !ask.resource.is_custom() {
                ask.resource.plural.clone()
            } else {
                format!("{}/{}", ask.resource.group, ask.resource.plural)
            };
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{path}/{}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: UID in precondition: {}, UID in object meta: {}",
                key(&ask.namespace, &ask.name),
                uid(&new),
                uid(&live)
            );
            return Err(conflict(&ask.resource, &ask.name, &why));
        }
        normalize(&ask.resource, &ask.version, &mut new);
        self.keep_what_is_not_asked(ask, &live, &mut new);
        let now = self.now();
        managers::update(&live, &mut new, false, self.writer(ask, &now, &ask.api_version()));
        self.replace(ask, &live, new)
    }

    pub(in crate::sim) fn patch(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        let Payload::Patch(kind, patch) = &ask.payload else { return Err(internal("a patch has a patch")) };
        if let PatchKind::Apply { force } = kind {
            return self.apply(ask, patch, *force);
        }
        let live = self.stored(ask).ok_or_else(|| not_found(&ask.resource, &ask.name))?;
        let mut new = (*live).clone();
        let served = ask.api_version();
        map(&mut new).insert("apiVersion".to_owned(), json!(served));
        match kind {
            PatchKind::Json => patch::json(&mut new, patch)?,
            PatchKind::Merge => patch::merge(&mut new, patch)?,
            _ => patch::strategic(&mut new, patch, shape_of(&ask.resource, &ask.version))?,
        }
        let changed = |field: &str, expected: &str| new.get(field).and_then(Value::as_str) != Some(expected);
        if changed("apiVersion", &served) || changed("kind", &ask.resource.kind) {
            return Err(retyped(ask, &new));
        }
        check_place(ask, &mut new)?;
        if uid(&new).is_empty() {
            copy(&mut new, &live, "uid");
        }
        normalize(&ask.resource, &ask.version, &mut new);
        self.keep_what_is_not_asked(ask, &live, &mut new);
        let now = self.now();
        managers::update(&live, &mut new, false, self.writer(ask, &now, &served));
        self.replace(ask, &live, new)
    }

    fn apply(&mut self, ask: &Ask, applied: &Value, force: bool) -> Result<Reply, Refusal> {
        let text_of = |field: &str| applied.get(field).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text_of("apiVersion"), text_of("kind"));
        if api_version != ask.api_version() || kind != ask.resource.kind {
            let (group, version) = crate::sim::catalogue::split(api_version);
            return Err(bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")));
        }
        let (sent_namespace, mut applied) = (namespace(applied).to_owned(), applied.clone());
        check_place(ask, &mut applied)?;
        let now = self.now();
        let stored_as = json!(ask.resource.api_version(&ask.resource.storage_version));
        map(&mut applied).insert("apiVersion".to_owned(), stored_as.clone());
        let Some(live) = self.stored(ask) else {
            if !uid(&applied).is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {}, and no existing object was found",
                    uid(&applied)
                );
                return Err(conflict(&ask.resource, &ask.name, &why));
            }
            if !ask.subresource.is_empty() {
                return Err(not_found(&ask.resource, &ask.name));
            }
            fits(ask, &applied, &sent_namespace)?;
            self.may_create(ask, &ask.name)?;
            let nothing = json!({"apiVersion": stored_as, "kind": kind, "metadata": {}});
            let mut object = managers::apply(&nothing, &applied, force, self.writer(ask, &now, &ask.api_version()))?;
            meta_mut(&mut object).remove("resourceVersion");
            normalize(&ask.resource, &ask.version, &mut object);
            fill_new(&ask.resource, &ask.version, &mut object);
            let object = self.insert(ask, object, false)?;
            return Ok(Reply::Object { code: 201, object });
        };
        fits(ask, &applied, &sent_namespace)?;
        let mut new = managers::apply(&live, &applied, force, self.writer(ask, &now, &ask.api_version()))?;
        let managers = meta(&new, "managedFields").cloned();
        normalize(&ask.resource, &ask.version, &mut new);
        self.keep_what_is_not_asked(ask, &live, &mut new);
        set(&mut new, "managedFields", managers);
        self.replace(ask, &live, new)
    }

    /// A request to the object leaves its status alone where that is a subresource; one to the status leaves all else.
    fn keep_what_is_not_asked(&self, ask: &Ask, live: &Value, new: &mut Value) {
        let keep = |new: &mut Value, field: &str| match live.get(field) {
            Some(value) => map(new).insert(field.to_owned(), value.clone()),
            None => map(new).remove(field),
        };
        match ask.subresource.as_str() {
            "" => {
                let version = ask.resource.version(&ask.version);
                if version.is_some_and(|version| version.status) {
                    keep(new, "status");
                }
                if ask.resource.role == Role::Namespace {
                    keep(new, "spec");
                }
            }
            "finalize" => {
                keep(new, "status");
            }
            _ => {
                let status = new.get("status").cloned();
                let managers = meta(new, "managedFields").cloned();
                let metadata = new.get("metadata").cloned();
                let version = meta(new, "resourceVersion").cloned();
                *new = live.clone();
                if !ask.resource.is_custom()
                    && let Some(metadata) = metadata
                {
                    map(new).insert("metadata".to_owned(), metadata);
                    // Old kubelets got them wrong.
                    if ask.resource.role == Role::Pod {
                        copy(new, live, "ownerReferences");
                    }
                }
                set(new, "resourceVersion", version);
                set(new, "managedFields", managers);
                match status {
                    Some(status) => map(new).insert("status".to_owned(), status),
                    None => map(new).remove("status"),
                };
            }
        }
    }

    /// Stores a new state of an object, or takes the object away if that was its last finalizer.
    fn replace(&mut self, ask: &Ask, live: &Arc<Value>, mut new: Value) -> Result<Reply, Refusal> {
        let resource = &ask.resource;
        match text(&new, "resourceVersion") {
            "" | "0" if resource.is_custom() || resource.role == Role::Definition => {
                let error =
                    FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
                return Err(invalid_as(&resource.plural, &resource.group, &ask.name, &[error]));
            }
            "" | "0" => copy(&mut new, live, "resourceVersion"),
            given if given.parse() != Ok(version(live)) => {
                return Err(conflict(resource, &ask.name, MODIFIED));
            }
            _ => {}
        }
        // What an update can't change is put back without a word.
        if uid(&new).is_empty() {
            copy(&mut new, live, "uid");
        }
        copy(&mut new, live, "creationTimestamp");
        copy(&mut new, live, "generation");
        if is_deleting(live) {
            copy(&mut new, live, "deletionTimestamp");
            if meta(&new, "deletionGracePeriodSeconds").is_none() {
                copy(&mut new, live, "deletionGracePeriodSeconds");
            }
        }
        let status_apart = resource.version(&ask.version).is_some_and(|version| version.status);
        if resource.generation && differs_in_spec(resource, status_apart, live, &new) {
            set(&mut new, "generation", Some(json!(generation(live) + 1)));
        }
        // The checks of single finalizers belong to the kind; they come after those of all kinds.
        let (items, mut errors): (Vec<_>, Vec<_>) =
            validate(resource, &new, false).into_iter().partition(FieldError::is_about_item);
        let updates = validate_update(live, &new);
        errors.extend(updates.clone());
        errors.extend(updates);
        errors.extend(items);
        errors.extend(check_custom(ask, &new)?);
        if !errors.is_empty() {
            return Err(invalid(resource, name(live), &errors));
        }
        self.admission.references(ask, &self.catalogue, Some(live), &new)?;
        self.admission.review(&review(ask, Operation::Update, Some(&new), Some(live)), name(live))?;
        if managers::same_but_times(live, &new) {
            return Ok(Reply::Object { code: 200, object: Arc::clone(live) });
        }
        let key = key(&ask.namespace, name(live));
        let vanishes = may_vanish(resource, live, &new);
        if ask.dry_run {
            return Ok(Reply::Object { code: 200, object: Arc::new(new) });
        }
        if vanishes {
            self.storage.remove(resource.id, &key);
            return Ok(Reply::Object { code: 200, object: Arc::new(new) });
        }
        Ok(Reply::Object { code: 200, object: self.storage.put(resource.id, &key, new) })
    }
}

/// Whether an applied configuration fits the schema of a custom resource.
fn fits(ask: &Ask, applied: &Value, namespace: &str) -> Result<(), Refusal> {
    let version = ask.resource.version(&ask.version);
    let Some(schema) = version.and_then(|version| version.schema.as_ref()) else { return Ok(()) };
    let misfits = schema.misfits(applied);
    let text = match misfits.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    Err(internal(format!(
        "failed to create typed patch object ({namespace}/{}; {}, Kind={}): {text}",
        name(applied),
        ask.api_version(),
        ask.resource.kind
    )))
}

/// A patch that changes what an object is.
fn retyped(ask: &Ask, new: &Value) -> Refusal {
    let text = |field: &str| new.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    if ask.resource.is_custom() {
        if api_version != ask.api_version() {
            return bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                ask.api_version()
            ));
        }
        let problem = format!("must be {}", ask.resource.kind);
        let error = FieldError::invalid("kind", &json!(kind), &problem);
        return invalid_as(kind, &ask.resource.group, name(new), &[error]);
    }
    let detail = format!(
        "no kind \"{kind}\" is registered for version \"{api_version}\" in scheme \"pkg/runtime/scheme.go:111\""
    );
    let error = FieldError::invalid("patch", &json!(new.to_string()), &detail);
    invalid_as("", "", "", &[error])
}
