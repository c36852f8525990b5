//! The seam over a store in memory, which keeps to the conditions of puts, and over one that fails as servers do.

use super::*;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

type Outcome<T> = Result<T, object_store::Error>;

/// A server with a bad day.
#[derive(Debug, Default)]
struct Server {
    memory: InMemory,
    /// Puts that are done, and whose answers are lost.
    answers_lost: AtomicUsize,
    /// Puts that are refused before they are done.
    refusals: AtomicUsize,
    ignores_conditions: bool,
    parts_fail: bool,
    parts_aborted: AtomicUsize,
}

fn broken(text: &str) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
}

const BUSY: &str = "Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>";

/// Counts down; whether there was something to count.
fn takes(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a server")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Server {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Outcome<PutResult> {
        if takes(&self.refusals) {
            return Err(broken(BUSY));
        }
        if self.ignores_conditions {
            options.mode = PutMode::Overwrite;
        }
        let put = self.memory.put_opts(path, payload, options).await;
        if takes(&self.answers_lost) { Err(broken(BUSY)) } else { put }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Outcome<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Outcome<GetResult> {
        self.memory.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Outcome<Path>>) -> BoxStream<'static, Outcome<Path>> {
        self.memory.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Outcome<ObjectMeta>> {
        self.memory.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Outcome<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Outcome<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

#[async_trait::async_trait]
impl MultipartStore for Server {
    async fn create_multipart(&self, path: &Path) -> Outcome<MultipartId> {
        self.memory.create_multipart(path).await
    }

    async fn put_part(&self, path: &Path, id: &MultipartId, place: usize, part: PutPayload) -> Outcome<PartId> {
        if self.parts_fail && place > 0 {
            return Err(broken("status code: 400 Bad Request: <Code>InvalidPart</Code>"));
        }
        self.memory.put_part(path, id, place, part).await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Outcome<PutResult> {
        self.memory.complete_multipart(path, id, parts).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Outcome<()> {
        self.parts_aborted.fetch_add(1, Ordering::SeqCst);
        self.memory.abort_multipart(path, id).await
    }
}

/// Small, so that objects of tests have parts.
const SMALL: Sizes = Sizes { put_max: 100, part: 40 };

fn depot(server: &Arc<Server>) -> ObjectDepot {
    ObjectDepot::of(server.clone(), &BucketAddress::parse("bucket/of/tests").unwrap(), SMALL).unwrap()
}

fn named(bytes: &[u8]) -> String {
    format!("packs/{}", Digest::of(bytes))
}

#[test]
fn an_object_is_put_once_and_listed_by_its_folder() {
    let server = Arc::new(Server::default());
    let depot = depot(&server);
    assert_eq!(depot.put_new("packs/ab", b"one"), Ok(true));
    assert_eq!(depot.put_new("packs/ab", b"two"), Ok(false));
    assert_eq!(depot.put_new("packs/deep/er", b"three"), Ok(true));
    assert_eq!(depot.put_new("store", b"four"), Ok(true));
    let entry = |name: &str, bytes| ObjectEntry { name: name.into(), bytes };
    assert_eq!(depot.list("packs"), Ok(vec![entry("packs/ab", 3)]));
    assert_eq!((depot.get("packs/ab"), depot.get("packs/cd")), (Ok(Some(b"one".into())), Ok(None)));
    assert_eq!((depot.delete("packs/ab"), depot.delete("packs/ab")), (Ok(()), Ok(())));
    assert_eq!(depot.list("packs"), Ok(vec![]));
}

#[test]
fn a_put_whose_answer_was_lost_is_ones_own_and_no_other_is() {
    let server = Arc::new(Server::default());
    let depot = depot(&server);
    assert_eq!(depot.put_new("lease/1", b"mine"), Ok(true));
    server.answers_lost.store(2, Ordering::SeqCst);
    assert_eq!(depot.put_new("lease/2", b"mine"), Ok(true));
    // Refused, so that it is asked again, and meanwhile another has put the same bytes.
    assert_eq!(depot.put_new("lease/3", b"theirs"), Ok(true));
    server.refusals.store(1, Ordering::SeqCst);
    assert_eq!(depot.put_new("lease/3", b"theirs"), Ok(false));
}

#[test]
fn a_server_that_overwrites_is_refused_before_anything_relies_on_it() {
    let server = Arc::new(Server { ignores_conditions: true, ..Server::default() });
    let error = depot(&server).put_new("store", b"one").unwrap_err().to_string();
    assert!(error.contains("s3://bucket/of/tests/store") && error.contains("If-None-Match"), "{error}");
    assert_eq!(depot(&server).get("store"), Ok(None));
}

#[test]
fn large_objects_are_joined_of_parts_and_appear_whole() {
    let server = Arc::new(Server::default());
    let depot = depot(&server);
    let bytes: Vec<u8> = (0..250u8).collect();
    let name = named(&bytes);
    assert_eq!((depot.put_new(&name, &bytes), depot.put_new(&name, &bytes)), (Ok(true), Ok(false)));
    assert_eq!(depot.get(&name), Ok(Some(bytes.clone())));
    // A name that says nothing of the bytes is put under the condition, whatever its size.
    assert_eq!((depot.put_new("lease/1", &bytes), depot.put_new("lease/1", &bytes)), (Ok(true), Ok(false)));
    assert_eq!(server.parts_aborted.load(Ordering::SeqCst), 0);
}

#[test]
fn parts_of_a_large_object_that_is_not_joined_are_removed() {
    let server = Arc::new(Server { parts_fail: true, ..Server::default() });
    let depot = depot(&server);
    let bytes = [7; 250];
    assert!(depot.put_new(&named(&bytes), &bytes).unwrap_err().why.contains("InvalidPart"));
    assert_eq!(server.parts_aborted.load(Ordering::SeqCst), 1);
    assert_eq!(depot.get(&named(&bytes)), Ok(None));
}

#[test]
fn failures_say_what_to_do_and_quote_no_answer() {
    let of = |text: &str| Failure::of(&broken(text));
    let body = "403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>KEY</AWSAccessKeyId></Error>";
    let denied = of(&format!("status code: {body}"));
    assert_eq!(denied, Failure::Denied("SignatureDoesNotMatch".into()));
    assert!(!denied.to_string().contains("KEY<"));
    for (text, failure) in [
        ("status code: 404 Not Found: <Code>NoSuchBucket</Code>", Failure::NoBucket),
        ("status code: 404 Not Found: <Code>NoSuchUpload</Code>", Failure::Missing),
        ("status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>", Failure::Clock),
        ("status code: 409 Conflict: <Code>ConditionalRequestConflict</Code>", Failure::Conflict),
        ("status code: 412 Precondition Failed: ", Failure::Exists),
        ("status code: 501 Not Implemented: <Code>NotImplemented</Code>", Failure::Unconditional),
        ("status code: 429 Too Many Requests: ", Failure::Busy("429".into())),
        ("status code: 403 Forbidden: <Code>QuotaExceeded</Code>", Failure::Full("QuotaExceeded".into())),
    ] {
        assert_eq!(of(text), failure, "{text}");
    }
    assert!(of(BUSY).is_passing() && !denied.is_passing());
}
