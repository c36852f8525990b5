//! A walk over every request and every role: a served store does what [`Request::needs`] allows, and nothing else.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapetum::{Error, Options, Place, Store};
use tapetum_service::caller::Gathering;
use tapetum_service::examples::requests;
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{PromotedRow, Reply};
use tapetum_service::request::{Request, Role};
use tapetum_service::serving_store::ServingStore;

use crate::asker::{Asker, Peer};
use crate::gate::Gate;
use crate::served::Served;

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
    served: Served,
    gate: Arc<Gate>,
}

impl Fixture {
    /// A store with the keyspaces `papers` and `secret`, and users.
    fn new(name: &str, users: &str) -> Fixture {
        let folder = std::env::temp_dir().join(format!("tapetum-served-{name}-{}", std::process::id()));
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
        let served = Served::new(Box::new(OneStore(Arc::clone(&store))), place, Vec::new(), 0);
        Fixture { folder, store, served, gate }
    }

    fn asker(&self, name: &str) -> Asker {
        Asker::user(self.gate.of_certificate(name).unwrap(), here(), "a door")
    }

    fn done(&self, asker: &Asker, request: Request) -> (Result<(), Failure>, Vec<Reply>) {
        let mut told = Gathering::default();
        let done = self.served.execute(asker, request, &mut told);
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

/// The role that is needed, and whether over the store: written down here a second time.
fn expected(request: &Request) -> (Role, bool) {
    match request {
        Request::Keyspaces { .. }
        | Request::Format { .. }
        | Request::CheckFormat { .. }
        | Request::Get { .. }
        | Request::GetStamped { .. }
        | Request::Scan { .. }
        | Request::List { .. }
        | Request::Query(_)
        | Request::GetFields(_)
        | Request::Betweenness(_)
        | Request::RunPipeline { .. }
        | Request::RunPictures(_)
        | Request::Locate { .. } => (Role::Read, false),
        Request::Put { .. }
        | Request::Store { .. }
        | Request::CompareAndSet { .. }
        | Request::Increment(_)
        | Request::Delete { .. }
        | Request::DeleteMany { .. } => (Role::Write, false),
        Request::CreateKeyspace(_)
        | Request::DropKeyspace { .. }
        | Request::SetFormat { .. }
        | Request::GrowBlockDevice { .. } => (Role::Admin, false),
        Request::Freeze(_)
        | Request::Freezes
        | Request::RenewFreeze { .. }
        | Request::ReleaseFreeze { .. }
        | Request::Figures
        | Request::Check
        | Request::Inspect => (Role::Read, true),
        // A rename needs both names, and these users have one.
        Request::RenameKeyspace { .. }
        | Request::Backup { .. }
        | Request::Promote { .. }
        | Request::Grow { .. }
        | Request::ResizeMemory { .. } => (Role::Admin, true),
    }
}

#[test]
fn each_role_may_do_what_a_request_needs_and_nothing_else() {
    let users: String = Role::ALL
        .iter()
        .flat_map(|role| [("papers", "papers"), ("secret", "secret"), ("store", "*")].map(|of| (role.name(), of)))
        .map(|(role, (user, keyspace))| format!("{role}-{user} {role}:{keyspace} -\n"))
        .collect();
    let fixture = Fixture::new("roles", &users);
    for held in Role::ALL {
        for over in ["papers", "secret", "store"] {
            let asker = fixture.asker(&format!("{}-{over}", held.name()));
            for request in requests("papers") {
                let (needed, of_store) = expected(&request);
                let is_any = matches!(request, Request::Keyspaces { name: None, .. });
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
    let asker = Asker::everybody(here(), "a door");
    for request in requests("papers") {
        let is_admin = expected(&request).0 == Role::Admin;
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
