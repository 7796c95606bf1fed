#!/usr/bin/perl
# The smallest engine for packetrig: one stream, frame by frame, when each is due. docs/book/engines.md has the protocol.
use strict;
use warnings;
use JSON::PP;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

$| = 1;
sub say_message { print encode_json($_[0]), "\n" }
sub now_ns { int(clock_gettime(CLOCK_MONOTONIC) * 1e9) }

say_message({ type => "hello", protocol => 1, name => "smallest", version => "1",
    abilities => { delay => JSON::PP::true, bursts => JSON::PP::true } });

my $prepare = decode_json(scalar <STDIN> // exit);
my $stream = $prepare->{streams}[0];

# The frames with their due times: a file header of 24 bytes, then records of 16 bytes and a frame.
open(my $file, "<:raw", $stream->{capture}{file}) or die "no capture: $!";
my $content = do { local $/; <$file> };
my @frames;
for (my $at = 24; $at < length $content;) {
    my ($seconds, $nanoseconds, $length) = unpack("V3", substr($content, $at, 12));
    push @frames, [$seconds * 1e9 + $nanoseconds, substr($content, $at + 16, $length)];
    $at += 16 + $length;
}

# AF_PACKET is 17, SOCK_RAW 3, SIOCGIFINDEX 0x8933.
socket(my $link, 17, 3, 0) or die "no raw socket: $!";
my $request = pack("a40", $prepare->{interface});
ioctl($link, 0x8933, $request) or die "no interface $prepare->{interface}: $!";
my $address = pack("S n l S C C a8", 17, 0x88b5, unpack("x16 l", $request), 0, 0, 6, "");
say_message({ type => "ready" });

# The next line, if there is one within so many seconds; "" at the end of the input.
sub order_within {
    my $wait = "";
    vec($wait, fileno(STDIN), 1) = 1;
    return undef unless select($wait, undef, undef, $_[0]);
    return scalar(<STDIN>) // "";
}

my ($frames, $bytes, $refused, $first, $last) = (0, 0, 0, undef, undef);
sub counts {
    my %count = (stream => $stream->{stream}, frames => $frames, bytes => $bytes, refused => $refused);
    @count{"first_ns", "last_ns"} = ($first, $last) if defined $first;
    return { type => $_[0], streams => [\%count] };
}

my $start = <STDIN> // exit;
my $order = decode_json($start);
my $told = 0;
if ($order->{type} eq "start") {
    FRAME: for my $frame (@frames) {
        my $due = $order->{at_ns} + $frame->[0];
        while ((my $left = $due - now_ns()) > 0) {
            my $line = order_within($left > 2e8 ? 0.2 : $left / 1e9);
            last FRAME if defined $line;    # stop, or packetrig is gone
            if (now_ns() - $told > 2e8) { $told = now_ns(); say_message(counts("counters")) }
        }
        if (now_ns() - $told > 2e8) { $told = now_ns(); say_message(counts("counters")) }
        $last = now_ns();
        $first //= $last;
        if (send($link, $frame->[1], 0, $address)) { $frames++; $bytes += length $frame->[1] }
        else { $refused++ }
    }
}
say_message(counts("ledger"));
