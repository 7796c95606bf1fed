fn main() {
    use packetrig_sys::bpf::Program;
    let exit = [0x95u64];
    let f = vec![0u8; 60];
    for (n, code) in [
        ("empty", vec![0xb7u64 | (1 << 32), exit[0]]),
        ("ktime", vec![0x85u64 | (5 << 32), 0xb7 | (1 << 32), exit[0]]),
        ("2ktime", vec![0x85u64 | (5 << 32), 0x85u64 | (5 << 32), 0xb7 | (1 << 32), exit[0]]),
        ("cpu", vec![0x85u64 | (8 << 32), 0xb7 | (1 << 32), exit[0]]),
    ] {
        let p = Program::load("t", &code, true).unwrap();
        println!("{n}: {:?}", [p.time(&f, 1 << 20).unwrap(), p.time(&f, 1 << 20).unwrap()]);
    }
}
