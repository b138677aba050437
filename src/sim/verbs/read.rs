//! GET of one object and of a list.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use serde_json::{Value, json};

use crate::sim::{
    request::Ask,
    selectors::Selector,
    status::{Refusal, bad_request, expired, not_found, refuse},
    storage::Table,
    world::{ListReply, Reply, World},
};

impl World {
    pub(in crate::sim) fn get(&self, ask: &Ask) -> Result<Reply, Refusal> {
        let object = self.stored(ask).ok_or_else(|| not_found(&ask.resource, &ask.name))?;
        Ok(Reply::Object { code: 200, object })
    }

    pub(in crate::sim) fn list(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        self.list_as_of(ask, None).map(Reply::List)
    }

    /// A list, of an older state if one is given.
    pub(in crate::sim) fn list_as_of(&mut self, ask: &Ask, stale: Option<u64>) -> Result<ListReply, Refusal> {
        let options = &ask.list;
        let selector = Selector::parse(&options.labels, &options.fields, &ask.resource)?;
        let current = self.storage.version();
        let token = match options.continue_token.as_str() {
            "" => None,
            token => Some(Token::read(token)?),
        };
        let asked = match options.version.as_str() {
            "" => 0,
            text => parse_version(text).map_err(|error| bad_request(format!("invalid resource version: {error}")))?,
        };
        if asked > current {
            return Err(too_large(asked, current));
        }
        let exact = (options.version_match == "Exact").then_some(asked);
        let at = token.as_ref().map(|token| token.version).or(exact).or(stale).unwrap_or(current);
        let namespace = (!ask.namespace.is_empty()).then_some(ask.namespace.as_str());
        let start = token.as_ref().map(|token| (token.start.as_str(), token.left));
        let table = self.storage.table(ask.resource.id);
        let old;
        let table: &Table = if at == current || (at >= table.compacted() && table.is_current(at)) {
            table
        } else {
            old = table.at(at).ok_or_else(|| gone(token.is_some(), at, table.compacted()))?;
            &old
        };
        Ok(page(table, &selector, namespace, start, options.limit, at))
    }
}

/// The objects after `start` that match, at most `limit` of them if that is not 0. With the start comes the number of
/// objects after it, if that is known.
fn page(
    table: &Table,
    selector: &Selector,
    namespace: Option<&str>,
    start: Option<(&str, Option<usize>)>,
    limit: usize,
    version: u64,
) -> ListReply {
    let mut matching = table
        .list(namespace, start.map(|(start, _)| start))
        .filter(|(_, object)| selector.is_everything() || selector.matches(object));
    let mut reply = ListReply { version, ..ListReply::default() };
    if limit == 0 {
        reply.items = matching.map(|(_, object)| Arc::clone(object)).collect();
        return reply;
    }
    let mut last = "";
    for (key, object) in matching.by_ref().take(limit) {
        reply.items.push(Arc::clone(object));
        last = key;
    }
    if matching.next().is_some() {
        // With a selector the server does not know how many of the rest match.
        reply.remaining = selector.is_everything().then(|| {
            let known = start.and_then(|(_, left)| left).map(|left| left.saturating_sub(reply.items.len()));
            known.unwrap_or_else(|| matching.count() + 1)
        });
        reply.continue_token = Token { version, start: last.to_owned(), left: reply.remaining }.write();
    }
    reply
}

/// Where a list goes on. Opaque to clients.
struct Token {
    version: u64,
    start: String,
    /// How many objects are left, if there is no selector.
    left: Option<usize>,
}

impl Token {
    fn write(&self) -> String {
        let start = format!("{}\u{0}", self.start);
        STANDARD_NO_PAD
            .encode(json!({"v": "meta.k8s.io/v1", "rv": self.version, "start": start, "left": self.left}).to_string())
    }

    fn read(token: &str) -> Result<Self, Refusal> {
        let read = || {
            let value: Value = serde_json::from_slice(&STANDARD_NO_PAD.decode(token).ok()?).ok()?;
            Some(Self {
                version: value.get("rv")?.as_u64()?,
                start: value.get("start")?.as_str()?.trim_end_matches('\u{0}').to_owned(),
                left: value.get("left").and_then(Value::as_u64).and_then(|left| left.try_into().ok()),
            })
        };
        read().ok_or_else(|| bad_request("invalid continue token: continue key is not valid"))
    }
}

/// The number of a resource version.
pub(super) fn parse_version(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax")
    })
}

fn too_large(asked: u64, current: u64) -> Refusal {
    let details = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    });
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    refuse(504, "Timeout", message, Some(details))
}

fn gone(continues: bool, version: u64, compacted: u64) -> Refusal {
    if continues {
        expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        )
    } else {
        expired(format!("too old resource version: {version} ({compacted})"))
    }
}
