// Package interop drives the server with gosnappi, the Go client, as Go test suites do.
package interop

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/open-traffic-generator/snappi/gosnappi"
)

const (
	packets  = 200
	size     = 128
	patience = 60 * time.Second
)

func client(t *testing.T, transport string) gosnappi.Api {
	t.Helper()
	api := gosnappi.NewApi()
	switch transport {
	case "http":
		api.NewHttpTransport().SetLocation(location(t, "OTG_HTTPS")).SetVerify(false)
	case "grpc":
		api.NewGrpcTransport().SetLocation(location(t, "OTG_GRPC")).SetRequestTimeout(patience)
	}
	return api
}

func location(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s does not say where the server is", name)
	}
	return value
}

// Runs a check over each transport.
func each(t *testing.T, check func(*testing.T, gosnappi.Api)) {
	for _, transport := range []string{"http", "grpc"} {
		t.Run(transport, func(t *testing.T) { check(t, client(t, transport)) })
	}
}

func config() gosnappi.Config {
	config := gosnappi.NewConfig()
	p1 := config.Ports().Add().SetName("p1").SetLocation("localhost:5555")
	p2 := config.Ports().Add().SetName("p2").SetLocation("localhost:5556")
	config.Captures().Add().SetName("c").SetPortNames([]string{p2.Name()}).SetFormat(gosnappi.CaptureFormat.PCAP)
	flow := config.Flows().Add().SetName("f1")
	flow.TxRx().Port().SetTxName(p1.Name()).SetRxNames([]string{p2.Name()})
	flow.Size().SetFixed(size)
	flow.Rate().SetPps(1000)
	flow.Duration().FixedPackets().SetPackets(packets)
	flow.Metrics().SetEnable(true)
	flow.Packet().Add().Ethernet().Src().SetValue("02:00:00:00:00:01")
	flow.Packet().Add().Ipv4().Src().SetValue("198.18.0.1")
	flow.Packet().Add().Udp().SrcPort().Increment().SetStart(5000).SetStep(1).SetCount(packets)
	return config
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func must[T any](t *testing.T, value T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func transmit(t *testing.T, api gosnappi.Api, state gosnappi.StateTrafficFlowTransmitStateEnum) {
	t.Helper()
	asked := gosnappi.NewControlState()
	asked.Traffic().FlowTransmit().SetState(state)
	_, err := api.SetControlState(asked)
	must(t, 0, err)
}

func capture(t *testing.T, api gosnappi.Api, state gosnappi.StatePortCaptureStateEnum) {
	t.Helper()
	asked := gosnappi.NewControlState()
	asked.Port().Capture().SetState(state)
	_, err := api.SetControlState(asked)
	must(t, 0, err)
}

func ended(t *testing.T, api gosnappi.Api) gosnappi.FlowMetric {
	t.Helper()
	asked := gosnappi.NewMetricsRequest()
	asked.Flow().SetFlowNames([]string{})
	var row gosnappi.FlowMetric
	eventually(t, "the flow has stopped", func() bool {
		got, err := api.GetMetrics(asked)
		row = must(t, got, err).FlowMetrics().Items()[0]
		return row.Transmit() == gosnappi.FlowMetricTransmit.STOPPED
	})
	return row
}

func TestARunFromConfigurationToCapture(t *testing.T) {
	each(t, func(t *testing.T, api gosnappi.Api) {
		warnings, err := api.SetConfig(config())
		if got := must(t, warnings, err).Warnings(); len(got) != 0 {
			t.Fatalf("warnings: %v", got)
		}
		capture(t, api, gosnappi.StatePortCaptureState.START)
		transmit(t, api, gosnappi.StateTrafficFlowTransmitState.START)
		row := ended(t, api)
		if row.FramesTx() != packets || row.FramesRx() != packets || row.BytesTx() != packets*size || row.BytesRx() != packets*size {
			t.Fatalf("flow: %v", row)
		}
		asked := gosnappi.NewMetricsRequest()
		asked.Port().SetPortNames([]string{"p2"})
		got, err := api.GetMetrics(asked)
		ports := must(t, got, err).PortMetrics().Items()
		if len(ports) != 1 || ports[0].FramesRx() != packets || ports[0].BytesRx() != packets*size {
			t.Fatalf("port: %v", ports)
		}
		// Every number that this client knows is there; a missing one would panic.
		_ = []any{ports[0].FramesTx(), ports[0].FramesTxRate(), ports[0].BytesRxRate(), row.FramesTxRate(), row.FramesRxRate()}
		capture(t, api, gosnappi.StatePortCaptureState.STOP)
		file, err := api.GetCapture(gosnappi.NewCaptureRequest().SetPortName("p2"))
		frames(t, must(t, file, err))
	})
}

// The capture has our frames, in order, with the length that was asked for.
func frames(t *testing.T, file []byte) {
	t.Helper()
	if len(file) < 24 || !bytes.Equal(file[:4], []byte{0xd4, 0xc3, 0xb2, 0xa1}) {
		t.Fatalf("no capture: %x", file)
	}
	seen := 0
	for rest := file[24:]; len(rest) > 0; seen++ {
		length := binary.LittleEndian.Uint32(rest[8:12])
		frame := rest[16 : 16+length]
		if length != size || binary.BigEndian.Uint16(frame[34:36]) != uint16(5000+seen) {
			t.Fatalf("frame %d: %x", seen, frame)
		}
		rest = rest[16+length:]
	}
	if seen != packets {
		t.Fatalf("%d frames captured", seen)
	}
}

func TestTheConfigurationComesBack(t *testing.T) {
	each(t, func(t *testing.T, api gosnappi.Api) {
		made := config()
		_, err := api.SetConfig(made)
		must(t, 0, err)
		back, err := api.GetConfig()
		if must(t, back, err).String() != made.String() {
			t.Fatalf("%s", back)
		}
	})
}

func TestErrorsAreRead(t *testing.T) {
	each(t, func(t *testing.T, api gosnappi.Api) {
		made := config()
		made.Flows().Items()[0].TxRx().Port().SetTxName("nowhere")
		_, err := api.SetConfig(made)
		read, ok := gosnappi.FromError(err)
		if !ok || read.Kind() != gosnappi.ErrorKind.VALIDATION || len(read.Errors()) == 0 {
			t.Fatalf("%v", err)
		}
		if !strings.HasPrefix(read.Errors()[0], "flows[0].tx_rx.port.tx_name") {
			t.Fatalf("%v", read.Errors())
		}
	})
}

func TestTheVersionSuits(t *testing.T) {
	each(t, func(t *testing.T, api gosnappi.Api) {
		must(t, 0, api.CheckVersionCompatibility())
	})
}
