//! A walk over every request and every role: the door does what [`Request::needs`] allows, and nothing else.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapetum::{Error, Options, Place, Store};
use tapetum_access::gate::Gate;
use tapetum_service::caller::Gathering;
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{PromotedRow, Reply};
use tapetum_service::request::{
    Betweenness, CreateKeyspace, Freeze, GetFields, ListWanted, Query, QueryWords, Range, Request, Role, RunPictures,
    ScanWanted, Side, Sources,
};
use tapetum_service::serving_store::ServingStore;

use crate::answering::DoorShared;
use crate::asker::{Asker, Peer};
use crate::moments::Moments;
use crate::ticket::TicketOffice;

const MIB: u64 = 1 << 20;

struct OneStore(Arc<Store>);

impl ServingStore for OneStore {
    fn store(&self) -> Result<Arc<Store>, Error> {
        Ok(Arc::clone(&self.0))
    }
    fn is_fenced(&self) -> bool {
        false
    }
    fn promote(&self, _force: bool) -> Result<PromotedRow, Failure> {
        Err(Failure::bad("this is no standby"))
    }
    fn resize_memory(&self, _store: &Store, _memory_bytes: u64) -> Result<(), Error> {
        Ok(())
    }
    fn take_memory(&self, _client: u64, _bytes: usize) -> bool {
        true
    }
    fn wait_for_memory(&self, _begins: bool) {}
    fn is_memory_wanted(&self) -> bool {
        false
    }
    fn give_memory(&self, _client: u64, _bytes: usize, _is_all: bool) {}
}

struct Fixture {
    folder: PathBuf,
    store: Arc<Store>,
    shared: DoorShared,
    gate: Arc<Gate>,
}

impl Fixture {
    /// A store with the keyspaces `papers` and `secret`, and users.
    fn new(name: &str, users: &str) -> Fixture {
        let folder = std::env::temp_dir().join(format!("tapetum-flight-{name}-{}", std::process::id()));
        let place = Place::Directory(folder.join("data"));
        let options =
            Options { capacity_bytes: Some(64 * MIB), memory_bytes: Some(64 * MIB), create: true, ..Options::new() };
        let store = Arc::new(options.open(place.clone()).unwrap());
        for keyspace in ["papers", "secret"] {
            store.create_keyspace_of(keyspace, tapetum::KeyspaceKind::Hashed).unwrap();
        }
        let path = folder.join("users");
        write_users(&path, users);
        let gate = Arc::new(Gate::open(&path).unwrap());
        let (office, moments) = (TicketOffice::new([1; 16]), Arc::new(Moments::new(1)));
        let source = Box::new(OneStore(Arc::clone(&store)));
        let shared = DoorShared::new(source, place, Vec::new(), office, moments, Some(Arc::clone(&gate)));
        Fixture { folder, store, shared, gate }
    }

    fn asker(&self, name: &str) -> Asker {
        Asker::user(self.gate.of_certificate(name).unwrap(), here())
    }

    fn done(&self, asker: &Asker, request: Request) -> (Result<(), Failure>, Vec<Reply>) {
        let mut told = Gathering::default();
        let done = self.shared.execute(asker, request, &mut told);
        (done, told.replies)
    }

    fn keyspaces(&self) -> Vec<String> {
        let mut names: Vec<String> = self.store.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
        names.sort();
        names
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A failure here is the test's, which is told.
        let _ = self.store.close();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn write_users(path: &Path, users: &str) {
    fs::write(path, users).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn here() -> Peer {
    Peer::Unix { uid: None }
}

/// The number of a request's variant: a new one has to be named here, and in [`requests`].
fn number(request: &Request) -> usize {
    match request {
        Request::Keyspaces { name: None, .. } => 0,
        Request::Keyspaces { name: Some(_), .. } => 1,
        Request::Format { .. } => 2,
        Request::CreateKeyspace(_) => 3,
        Request::DropKeyspace { .. } => 4,
        Request::RenameKeyspace { .. } => 5,
        Request::SetFormat { .. } => 6,
        Request::CheckFormat { .. } => 7,
        Request::GrowBlockDevice { .. } => 8,
        Request::Get { .. } => 9,
        Request::Put { .. } => 10,
        Request::Store { .. } => 11,
        Request::Delete { .. } => 12,
        Request::DeleteMany { .. } => 13,
        Request::Scan { .. } => 14,
        Request::List { .. } => 15,
        Request::Query(_) => 16,
        Request::GetFields(_) => 17,
        Request::Betweenness(_) => 18,
        Request::RunPipeline { .. } => 19,
        Request::RunPictures(_) => 20,
        Request::Freeze(_) => 21,
        Request::Freezes => 22,
        Request::RenewFreeze { .. } => 23,
        Request::ReleaseFreeze { .. } => 24,
        Request::Backup { .. } => 25,
        Request::Promote { .. } => 26,
        Request::Figures => 27,
        Request::Check => 28,
        Request::Inspect => 29,
        Request::Locate { .. } => 30,
        Request::Grow { .. } => 31,
        Request::ResizeMemory { .. } => 32,
    }
}

/// The role that is needed, over one keyspace, or over the store: written down here a second time.
fn expected(number: usize) -> (Role, bool) {
    match number {
        0..=2 | 7 | 9 | 14..=20 | 30 => (Role::Read, false),
        10..=13 => (Role::Write, false),
        3..=6 | 8 => (Role::Admin, false),
        21..=24 | 27..=29 => (Role::Read, true),
        _ => (Role::Admin, true),
    }
}

/// A request of each variant over a keyspace.
fn requests(keyspace: &str) -> Vec<Request> {
    let (keyspace, key) = (keyspace.to_owned(), b"key".to_vec());
    let words =
        QueryWords { fields: "key: k bytes; value: v bytes".into(), select: "k".into(), ..QueryWords::default() };
    let (freeze, range, application) = (None, Range::default(), None);
    vec![
        Request::Keyspaces { name: None, freeze },
        Request::Keyspaces { name: Some(keyspace.clone()), freeze },
        Request::Format { keyspace: keyspace.clone(), freeze },
        Request::CheckFormat { keyspace: keyspace.clone(), fields: words.fields.clone() },
        Request::Get { keyspace: keyspace.clone(), key: key.clone() },
        Request::Put { keyspace: keyspace.clone(), key: key.clone(), value: b"value".to_vec() },
        Request::Store { keyspace: keyspace.clone(), items: Vec::new(), keeps_existing: false },
        Request::Delete { keyspace: keyspace.clone(), key: key.clone() },
        Request::DeleteMany { keyspace: keyspace.clone(), keys: Vec::new() },
        Request::Scan {
            keyspace: keyspace.clone(),
            freeze,
            range: range.clone(),
            limit: None,
            wanted: ScanWanted::Count,
        },
        Request::List { keyspace: keyspace.clone(), freeze, prefix: Vec::new(), wanted: ListWanted::Keys },
        Request::Query(Query {
            keyspace: keyspace.clone(),
            freeze,
            words: words.clone(),
            range,
            side: Side::Drive,
            application: None,
        }),
        Request::GetFields(GetFields {
            keyspace: keyspace.clone(),
            key: key.clone(),
            words: words.clone(),
            side: Side::Drive,
            application: None,
        }),
        Request::Betweenness(Betweenness {
            keyspace: keyspace.clone(),
            freeze,
            words,
            side: Side::Drive,
            application: None,
            is_undirected: false,
            is_normalized: false,
            sources: Sources::Automatic,
            seed: 0,
            top: 1,
            memory_bytes: MIB,
            parts: 1,
        }),
        Request::RunPipeline { keyspace: keyspace.clone(), key: key.clone(), pipeline: "sha256".into(), application },
        Request::RunPictures(RunPictures {
            keyspace: keyspace.clone(),
            pipeline: "flip".into(),
            prefixes: Vec::new(),
            seed: 0,
            most: 1,
            application: None,
        }),
        Request::Locate { keyspace: keyspace.clone(), key },
        Request::Freezes,
        Request::Freeze(Freeze { owner: "test".into(), lasts_ms: 1000, flash_bytes_max: None }),
        Request::RenewFreeze { id: 1, lasts_ms: 1 },
        Request::ReleaseFreeze { id: 1 },
        Request::Figures,
        Request::Check,
        Request::Inspect,
        Request::SetFormat { keyspace: keyspace.clone(), fields: None },
        Request::GrowBlockDevice { name: keyspace.clone(), size_bytes: MIB },
        Request::CreateKeyspace(CreateKeyspace {
            name: keyspace.clone(),
            is_ordered: false,
            block_device: None,
            may_exist: true,
        }),
        Request::RenameKeyspace { from: keyspace.clone(), to: keyspace.clone() },
        Request::DropKeyspace { name: keyspace },
        Request::Backup { folder: "/nowhere/at/all".into(), anew: false },
        Request::Promote { force: false },
        Request::Grow { capacity_bytes: 64 * MIB },
        Request::ResizeMemory { memory_bytes: 64 * MIB },
    ]
}

#[test]
fn each_role_may_do_what_a_request_needs_and_nothing_else() {
    let users: String = Role::ALL
        .iter()
        .flat_map(|role| [("papers", "papers"), ("secret", "secret"), ("store", "*")].map(|of| (role.name(), of)))
        .map(|(role, (user, keyspace))| format!("{role}-{user} {role}:{keyspace} -\n"))
        .collect();
    let fixture = Fixture::new("roles", &users);
    let mut seen: Vec<usize> = requests("papers").iter().map(number).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..=32).collect::<Vec<_>>(), "each variant once");
    for held in Role::ALL {
        for over in ["papers", "secret", "store"] {
            let asker = fixture.asker(&format!("{}-{over}", held.name()));
            for request in requests("papers") {
                let (needed, of_store) = expected(number(&request));
                let is_any = number(&request) == 0;
                let is_over = over == "store" || over == "papers" && !of_store || is_any;
                let told = format!("{} over {over}: {request:?}", held.name());
                let before = fixture.keyspaces();
                let (done, _) = fixture.done(&asker, request);
                let is_refused = matches!(&done, Err(failure) if failure.kind == FailureKind::Forbidden);
                assert_eq!(is_refused, !(held >= needed && is_over), "{told}: {done:?}");
                if is_refused {
                    assert_eq!(fixture.keyspaces(), before, "{told}");
                    let told = done.unwrap_err().message;
                    assert!(told.contains("tapetum user add"), "{told}");
                }
                // An admin has dropped it.
                if !fixture.store.keyspaces().iter().any(|keyspace| keyspace.name == "papers") {
                    let made = fixture.store.keyspace_or_create_of("papers", tapetum::KeyspaceKind::Hashed);
                    made.unwrap();
                }
            }
        }
    }
}

#[test]
fn everybody_may_do_all_but_what_an_admin_does_where_there_are_no_users() {
    let fixture = Fixture::new("everybody", "root admin:* -\n");
    let asker = Asker::everybody(here());
    for request in requests("papers") {
        let is_admin = expected(number(&request)).0 == Role::Admin;
        let told = format!("{request:?}");
        let (done, _) = fixture.done(&asker, request);
        let is_refused = matches!(&done, Err(failure) if failure.message.contains("socket of the store's owner"));
        assert_eq!(is_refused, is_admin, "{told}: {done:?}");
        assert!(!matches!(&done, Err(failure) if failure.kind == FailureKind::Forbidden), "{told}");
    }
}

#[test]
fn users_see_what_they_may_read_and_no_name_of_anything_else() {
    let fixture = Fixture::new("names", "alice write:papers,read:secrets,read:gone -\nroot read:* -\n");
    let (alice, root) = (fixture.asker("alice"), fixture.asker("root"));
    let names = |asker: &Asker| -> Vec<String> {
        let (done, told) = fixture.done(asker, Request::Keyspaces { name: None, freeze: None });
        done.unwrap();
        let [Reply::Keyspaces(rows)] = &told[..] else { panic!("{told:?}") };
        rows.iter().map(|row| row.name.clone()).collect()
    };
    assert_eq!(names(&alice), ["papers"]);
    assert_eq!(names(&root), ["default", "papers", "secret"]);
    let failure = |asker: &Asker, keyspace: &str| {
        fixture.done(asker, Request::Get { keyspace: keyspace.into(), key: b"k".to_vec() }).0.unwrap_err()
    };
    // A name that is there, and one that is not, are refused in the same words.
    let of_there = failure(&alice, "secret");
    let of_none = failure(&alice, "nothing");
    assert_eq!(of_there.kind, FailureKind::Forbidden);
    assert_eq!(of_there.message.replace("secret", "nothing"), of_none.message);
    // A right over a keyspace that is not there tells of none with a similar name.
    let unknown = failure(&alice, "secrets");
    assert_eq!(unknown.kind, FailureKind::UnknownKeyspace);
    assert!(!unknown.message.contains("\"secret\""), "{unknown}");
    assert!(failure(&root, "secrets").message.contains("\"secret\""));
}

#[test]
fn rights_that_were_taken_away_end_at_the_next_request() {
    let fixture = Fixture::new("taken", "alice write:papers -\n");
    let alice = fixture.asker("alice");
    let put = || Request::Put { keyspace: "papers".into(), key: b"k".to_vec(), value: b"v".to_vec() };
    fixture.done(&alice, put()).0.unwrap();
    for (users, told) in [("alice read:papers -\n", "may not write"), ("bob read:papers -\n", "log in again")] {
        write_users(&fixture.folder.join("users"), users);
        fixture.gate.reload().unwrap();
        let failure = fixture.done(&alice, put()).0.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Forbidden);
        assert!(failure.message.contains(told), "{failure}");
    }
}
