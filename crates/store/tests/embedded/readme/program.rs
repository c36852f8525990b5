fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = tapetum::Store::open("tapetum-data")?;
    store.put(b"greeting", b"hello")?;
    let item = store.get(b"greeting")?;
    assert_eq!(item.map(|item| item.value), Some(b"hello".to_vec()));

    let sessions = store.keyspace_or_create("sessions")?;
    sessions.put_until(b"alice", b"token", tapetum::Expiry::from_secs(1_900_000_000))?;
    for item in sessions.items() {
        let (key, item) = item?;
        println!("{} has {} bytes", String::from_utf8_lossy(&key), item.value.len());
    }
    store.close()?;
    Ok(())
}
