use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{StreamExt as _, future, future::BoxFuture, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use super::{
    AuditLog, CallHead, Fault, Outcome, Verb,
    call::{WatchEvent, json},
    log::{Admission, Unfinished, connection_error},
};

/// The body of an answer that went through an [`Audit`] layer.
pub type AuditBody = UnsyncBoxBody<Bytes, BoxError>;

/// A [`tower::Layer`] that writes an [`AuditLog`]. Made by [`AuditLog::layer`].
#[derive(Clone, Debug)]
pub struct Audit {
    log: AuditLog,
}

impl Audit {
    pub(super) fn new(log: AuditLog) -> Self {
        Self { log }
    }
}

impl<S> Layer<S> for Audit {
    type Service = AuditService<S>;

    fn layer(&self, inner: S) -> AuditService<S> {
        AuditService { inner, log: self.log.clone() }
    }
}

/// The service of an [`Audit`] layer. The inner service has to be `Clone`; put a
/// [`tower::buffer::BufferLayer`] between if it is not.
#[derive(Clone, Debug)]
pub struct AuditService<S> {
    inner: S,
    log: AuditLog,
}

impl<S, B> Service<Request<Body>> for AuditService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AuditBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<AuditBody>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The clone is not ready; the one that was polled is.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        let log = self.log.clone();
        Box::pin(async move { run(&log, ready, request).await })
    }
}

async fn run<S, B>(log: &AuditLog, mut service: S, request: Request<Body>) -> Result<Response<AuditBody>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let keep = log.keeps_bodies();
    let mut head = CallHead::new(&parts, &body, keep);
    let admission = log.admit(&mut head);
    let _unfinished = Unfinished { log, seq: head.seq };
    let end = |outcome| log.record(head.seq, |call| call.outcome = outcome);
    let drop_it = || {
        end(Outcome::Dropped);
        Err(connection_error())
    };

    let last = match admission {
        Admission::Drop => return drop_it(),
        Admission::Last => true,
        Admission::Go => false,
    };
    // Whatever becomes of the last call, also if its caller gives up: then the cut is complete.
    let _complete = last.then(|| Complete(log));
    if let Some(hook) = log.hook(&head) {
        hook.await;
    }
    let fault = log.fault(&head);
    match &fault {
        Fault::Delay(time) => tokio::time::sleep(*time).await,
        Fault::Pause(gate) => gate.pass().await,
        _ => {}
    }
    match &fault {
        _ if log.severed() && !last => return drop_it(), // meanwhile
        Fault::Fail(_) if last => return drop_it(),
        Fault::Drop => return drop_it(),
        Fault::Fail(refusal) => {
            end(Outcome::Refused);
            return Ok(refusal.response());
        }
        _ => {}
    }

    log.record(head.seq, |call| call.sent = Some(log.now()));
    let answer = async {
        let response = service.call(Request::from_parts(parts, Body::from(body))).await.map_err(Into::into)?;
        let (parts, body) = response.into_parts();
        log.record(head.seq, |call| {
            call.code = Some(parts.status.as_u16());
            call.effective = head.verb.writes() && !head.is_dry_run() && parts.status.is_success();
        });
        if head.verb == Verb::Watch && parts.status.is_success() {
            return Ok((parts, Answer::Watch(body)));
        }
        let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
        Ok::<_, BoxError>((parts, Answer::Whole(bytes)))
    };
    let (parts, answer) = match answer.await {
        Ok(answer) => answer,
        Err(error) => {
            end(Outcome::Failed(error.to_string()));
            return Err(error);
        }
    };
    log.record(head.seq, |call| {
        call.answered = Some(log.now());
        if let (Answer::Whole(bytes), true) = (&answer, keep) {
            call.answer = json(bytes);
        }
    });
    match &fault {
        Fault::HoldAnswer(gate) => gate.pass().await,
        Fault::FailAfter(refusal) if !log.severed() => {
            end(Outcome::Replaced);
            return Ok(refusal.response());
        }
        _ => {}
    }
    if matches!(fault, Fault::LoseAnswer) || log.severed() {
        end(Outcome::Lost);
        return Err(connection_error());
    }
    log.record(head.seq, |call| (call.outcome, call.told) = (Outcome::Answered, Some(log.now())));
    let body = match answer {
        Answer::Whole(bytes) => Full::new(bytes).map_err(|never| match never {}).boxed_unsync(),
        Answer::Watch(body) => breakable(log, head.seq, body),
    };
    Ok(Response::from_parts(parts, body))
}

enum Answer<B> {
    Whole(Bytes),
    Watch(B),
}

/// Passes a watch's events on until the log closes the watches or is cut off.
fn breakable<B>(log: &AuditLog, seq: u64, body: B) -> AuditBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let open = log.open_watch();
    let mut signal = log.subscribe();
    let closings = signal.borrow().closings;
    let broken = async move {
        let _ = signal.wait_for(|signal| signal.severed || signal.closings > closings).await;
    };
    let log = log.clone();
    let mut events = log.keeps_events().then(|| Events { log: log.clone(), seq, rest: Vec::new() });
    let end = stream::once(async move { log.severed().then(|| Err(connection_error())) });
    let frames = BodyStream::new(body.map_err(Into::into))
        .take_until(Box::pin(broken))
        .map(move |frame| {
            let _counted = &open; // until the stream is dropped
            if let (Some(events), Some(bytes)) = (&mut events, frame.as_ref().ok().and_then(|f| f.data_ref())) {
                events.take(bytes);
            }
            frame
        })
        .chain(end.filter_map(future::ready));
    StreamBody::new(frames).boxed_unsync()
}

/// Cuts the answer of a watch into events for the record.
struct Events {
    log: AuditLog,
    seq: u64,
    rest: Vec<u8>,
}

impl Events {
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if let Some(event) = json(&line) {
                let at = self.log.now();
                self.log.record(self.seq, |call| call.events.push(WatchEvent { at, event }));
            }
        }
    }
}

struct Complete<'a>(&'a AuditLog);

impl Drop for Complete<'_> {
    fn drop(&mut self) {
        self.0.complete_cut();
    }
}
