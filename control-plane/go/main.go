// Command plane runs a real Kubernetes control plane for tests on one machine:
// etcd, kube-apiserver, and the upstream garbage collector and namespace
// controller. One binary plays every part, each part in its own process, so
// that a test can kill and restart one of them alone.
//
//	plane up --dir D [flags] [-- kube-apiserver flags]   start everything, supervise it
//	plane etcd DIR CLIENT-URL                            embedded etcd
//	plane apiserver FLAGS                                kube-apiserver, upstream flags
//	plane controllers --kubeconfig F [flags]             garbage collector + namespace controller
//	plane kcm FLAGS                                      kube-controller-manager, upstream flags
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // queue depths in /metrics
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("usage: plane up|etcd|apiserver|controllers|kcm [arguments]"))
	}
	role, args := os.Args[1], os.Args[2:]
	// The upstream commands read os.Args themselves.
	os.Args = append(os.Args[:1:1], args...)
	switch role {
	case "up":
		fail(runUp(args))
	case "etcd":
		fail(runEtcd(args))
	case "controllers":
		fail(runControllers(args))
	case "apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kcm":
		os.Exit(cli.Run(kcm.NewControllerManagerCommand()))
	default:
		fail(fmt.Errorf("unknown role %q", role))
	}
}

// fail ends the process: status 1 with a message, or 0 where err is nil.
func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "plane:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func untilSignal() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	return ctx
}

// ---- etcd ------------------------------------------------------------------

func runEtcd(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: plane etcd DIR CLIENT-URL")
	}
	client, err := url.Parse(args[1])
	if err != nil {
		return err
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"} // a single member talks to no peer
	cfg := embed.NewConfig()
	cfg.Dir = args[0]
	cfg.LogLevel = "warn"
	cfg.UnsafeNoFsync = true // the data need not survive a power cut
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer etcd.Close()
	select {
	case err := <-etcd.Err():
		return err
	case <-untilSignal().Done():
		return nil
	}
}

// ---- garbage collector and namespace controller ----------------------------

// asController returns base acting as the named controller's service account,
// so that RBAC and admission see the user names of a real cluster.
func asController(base *rest.Config, name string) *rest.Config {
	cfg := rest.CopyConfig(base)
	cfg.UserAgent = "plane/" + name
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	}
	return cfg
}

// clients returns the typed and the metadata-only client for cfg.
func clients(cfg *rest.Config) (*kubernetes.Clientset, metadata.Interface, error) {
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	meta, err := metadata.NewForConfig(cfg)
	return typed, meta, err
}

func runControllers(args []string) error {
	fs := flag.NewFlagSet("controllers", flag.ExitOnError)
	kubeconfig := fs.String("kubeconfig", "", "kubeconfig of a member of system:masters")
	period := fs.Duration("sync-period", time.Second, "how often discovery is read for new types (kube-controller-manager: 30s)")
	gcWorkers := fs.Int("gc-workers", 20, "workers per garbage collector queue; 0: no garbage collector")
	nsWorkers := fs.Int("namespace-workers", 10, "namespace workers; 0: no namespace controller")
	listen := fs.String("listen", "", "address for /readyz, /has?uid=, /graph (DOT; ?uid=) and /metrics")
	klog.InitFlags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // no client-side rate limit
	ctx := untilSignal()

	gcClient, gcMeta, err := clients(asController(cfg, "generic-garbage-collector"))
	if err != nil {
		return err
	}
	nsClient, nsMeta, err := clients(asController(cfg, "namespace-controller"))
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(nsClient, 0)

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(gcClient.Discovery()))
	// Informers may start as soon as they exist: nothing else shares them.
	started := make(chan struct{})
	close(started)
	gc, err := garbagecollector.NewGarbageCollector(ctx, gcClient, gcMeta, mapper,
		garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(
			informers.NewSharedInformerFactory(gcClient, 0),
			metadatainformer.NewSharedInformerFactory(gcMeta, 0)),
		started)
	if err != nil {
		return err
	}
	if *gcWorkers > 0 {
		go wait.Until(mapper.Reset, *period, ctx.Done())
		// As upstream: workers start once every type is listed, or after 30 s.
		go gc.Run(ctx, *gcWorkers, 30*time.Second)
		go gc.Sync(ctx, gcClient.Discovery(), *period)
	}
	if *nsWorkers > 0 {
		ns := namespace.NewNamespaceController(ctx, nsClient, nsMeta,
			nsClient.Discovery().ServerPreferredNamespacedResources,
			shared.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
		shared.Start(ctx.Done())
		go ns.Run(ctx, *nsWorkers)
	}
	if *listen != "" {
		mux := http.NewServeMux()
		mux.Handle("/graph", gc.DebuggingHandler())
		mux.Handle("/metrics", legacyregistry.Handler())
		mux.HandleFunc("/has", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, gc.GraphHasUID(types.UID(r.URL.Query().Get("uid"))))
		})
		mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
			if *gcWorkers > 0 && !gc.IsSynced(klog.Background()) {
				http.Error(w, "not synced", http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
		go func() { fail(http.ListenAndServe(*listen, mux)) }()
	}
	<-ctx.Done()
	return nil
}

// ---- supervisor ------------------------------------------------------------

// part is one process of the control plane: how to start it, when it is ready.
type part struct {
	name  string
	args  []string
	ready string // polled until it answers 200
	cmd   *exec.Cmd
	gone  chan struct{} // closed when cmd has ended
}

type plane struct {
	dir   string
	token string
	parts []*part
	died  chan *exec.Cmd // every process that ended
}

// list is a repeatable string flag.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func runUp(args []string) error {
	begin := time.Now()
	// Pdeathsig is tied to the thread that starts the child, so keep that
	// thread: every child is started from this goroutine.
	runtime.LockOSThread()

	fs := flag.NewFlagSet("up", flag.ExitOnError)
	dir := fs.String("dir", "", "state directory (kubeconfigs, certificates, data, logs)")
	kind := fs.String("controllers", "fast", "fast: plane controllers; stock: kube-controller-manager; none")
	period := fs.Duration("sync-period", time.Second, "--sync-period of the fast controllers")
	gcWorkers := fs.Int("gc-workers", 20, "garbage collector workers per queue")
	workloads := fs.String("stock-controllers", "",
		"further controllers of kube-controller-manager, comma-separated (deployment-controller,job-controller,...)")
	keep := fs.Bool("keep", false, "ignore stdin; stop on SIGTERM or SIGINT only")
	remove := fs.Bool("remove", false, "remove the state directory on a regular exit")
	var users list
	fs.Var(&users, "user", "extra user NAME[:GROUP[,GROUP...]] without rights of its own; repeatable")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("up needs --dir")
	}
	root, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}

	// Commands. The end of stdin ends everything, start-up included: whoever
	// wanted this control plane is gone.
	stop, quit := context.WithCancel(untilSignal())
	defer quit()
	// Nor shall a closed stdout end this process before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	lines := make(chan string, 16)
	if !*keep {
		go func() {
			for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
				lines <- sc.Text()
			}
			quit()
		}()
	}
	in := func(name string) string { return filepath.Join(root, name) }

	ports, err := freePorts(4)
	if err != nil {
		return err
	}
	etcdURL := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	server := fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	ctlAddr, ctlURL := fmt.Sprintf("127.0.0.1:%d", ports[2]), ""
	var further []string // --stock-controllers
	if *workloads != "" {
		further = strings.Split(*workloads, ",")
	}
	// stockPart runs the named controllers of kube-controller-manager.
	stockPart := func(name string, port int, names ...string) *part {
		return &part{name: name, ready: fmt.Sprintf("https://127.0.0.1:%d/healthz", port), args: []string{"kcm",
			"--kubeconfig=" + in("kubeconfig"), "--leader-elect=false",
			"--controllers=" + strings.Join(names, ","),
			fmt.Sprintf("--concurrent-gc-syncs=%d", *gcWorkers),
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + in("certs-"+name),
			"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
			"--authentication-skip-lookup=true", "--kube-api-qps=500", "--kube-api-burst=1000"}}
	}

	// Credentials: a serving certificate, a service account key, static tokens.
	crt, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, []string{"localhost"})
	if err != nil {
		return err
	}
	saKey, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	var tokens strings.Builder
	kubeconfigs := map[string]string{}
	for _, u := range append(list{"admin:system:masters"}, users...) {
		name, groups, _ := strings.Cut(u, ":")
		fmt.Fprintf(&tokens, "%s-token,%s,%s,%q\n", name, name, name, groups)
		file := in(name + ".kubeconfig")
		if name == "admin" {
			file = in("kubeconfig")
		}
		kubeconfigs[name] = file
		if err := writeKubeconfig(file, server, crt, name, name+"-token"); err != nil {
			return err
		}
	}
	for name, data := range map[string][]byte{
		"server.crt": crt, "server.key": key, "sa.key": saKey, "tokens.csv": []byte(tokens.String()),
	} {
		if err := os.WriteFile(in(name), data, 0o600); err != nil {
			return err
		}
	}

	p := &plane{dir: root, token: "admin-token", died: make(chan *exec.Cmd, 8)}
	p.parts = append(p.parts,
		&part{name: "etcd", ready: etcdURL + "/health", args: []string{"etcd", in("etcd"), etcdURL}},
		&part{name: "apiserver", ready: server + "/readyz", args: append([]string{"apiserver",
			"--etcd-servers=" + etcdURL,
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[1]),
			"--tls-cert-file=" + in("server.crt"), "--tls-private-key-file=" + in("server.key"),
			"--cert-dir=" + in("certs"),
			"--endpoint-reconciler-type=none", // a loopback address is no valid endpoint
			"--service-cluster-ip-range=10.0.0.0/24",
			"--service-account-issuer=" + server,
			"--service-account-signing-key-file=" + in("sa.key"), "--service-account-key-file=" + in("sa.key"),
			"--authorization-mode=RBAC", "--token-auth-file=" + in("tokens.csv"),
			"--disable-admission-plugins=ServiceAccount", // nothing here makes service accounts
		}, fs.Args()...)})
	switch *kind {
	case "fast":
		ctlURL = "http://" + ctlAddr
		p.parts = append(p.parts, &part{name: "controllers", ready: ctlURL + "/readyz", args: []string{"controllers",
			"--kubeconfig=" + in("kubeconfig"), "--sync-period=" + period.String(),
			fmt.Sprintf("--gc-workers=%d", *gcWorkers), "--listen=" + ctlAddr}})
	case "stock":
		ctlURL = "https://" + ctlAddr
		p.parts = append(p.parts, stockPart("controllers", ports[2],
			append(further, "garbage-collector-controller", "namespace-controller")...))
		further = nil
	case "none":
	default:
		return fmt.Errorf("unknown --controllers %q", *kind)
	}
	if len(further) > 0 {
		p.parts = append(p.parts, stockPart("workloads", ports[3], further...))
	}

	err = p.run(stop, lines, begin, map[string]any{"event": "ready", "server": server, "etcd": etcdURL,
		"controllers": ctlURL, "kubeconfig": kubeconfigs["admin"], "kubeconfigs": kubeconfigs})
	// Nothing of value is left in memory: kill, last started first.
	for i := len(p.parts) - 1; i >= 0; i-- {
		p.parts[i].kill()
	}
	if stop.Err() != nil { // told to stop, perhaps in the middle of a start
		err = nil
	}
	if err == nil && *remove {
		err = os.RemoveAll(root)
	}
	return err
}

// run starts every part, announces it, and obeys the command lines until stop
// is done (nil) or a part ends by itself.
func (p *plane) run(stop context.Context, lines <-chan string, begin time.Time, ready map[string]any) error {
	pids := map[string]int{}
	for _, pt := range p.parts {
		if err := p.start(stop, pt); err != nil {
			return err
		}
		if pt.name == "apiserver" { // the apiserver makes this namespace shortly after it is ready
			if err := p.await(stop, pt, ready["server"].(string)+"/api/v1/namespaces/default"); err != nil {
				return err
			}
		}
		pids[pt.name] = pt.cmd.Process.Pid
	}
	ready["pids"], ready["seconds"] = pids, time.Since(begin).Seconds()
	say(ready)
	for {
		select {
		case <-stop.Done():
			return nil
		case cmd := <-p.died:
			for _, pt := range p.parts {
				if pt.cmd == cmd { // kill() would have cleared it
					return fmt.Errorf("%s ended unexpectedly, see %s", pt.name, filepath.Join(p.dir, pt.name+".log"))
				}
			}
		case line := <-lines:
			if err := p.obey(stop, line); err != nil {
				say(map[string]any{"event": "error", "command": line, "error": err.Error()})
			}
		}
	}
}

// obey carries out one command line: "kill NAME" (SIGKILL), "start NAME",
// "pause NAME" (SIGSTOP) or "resume NAME" (SIGCONT).
func (p *plane) obey(ctx context.Context, line string) error {
	verb, name, _ := strings.Cut(strings.TrimSpace(line), " ")
	for _, pt := range p.parts {
		if pt.name != name {
			continue
		}
		answer := map[string]any{"name": name}
		switch {
		case verb == "kill" && pt.cmd != nil:
			pt.kill()
			answer["event"] = "killed"
		case verb == "start" && pt.cmd == nil:
			if err := p.start(ctx, pt); err != nil {
				pt.kill() // so that it may be tried again
				return err
			}
			answer["event"], answer["pid"] = "started", pt.cmd.Process.Pid
		case verb == "pause" && pt.cmd != nil:
			if err := pt.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			answer["event"] = "paused"
		case verb == "resume" && pt.cmd != nil:
			if err := pt.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				return err
			}
			answer["event"] = "resumed"
		default:
			continue
		}
		say(answer)
		return nil
	}
	return errors.New("want: kill, pause or resume NAME (of a running part), or start NAME (of a killed one)")
}

// start runs pt, its output appended to NAME.log, and waits until it is ready.
func (p *plane) start(ctx context.Context, pt *part) error {
	log, err := os.OpenFile(filepath.Join(p.dir, pt.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// This very program, even if its file was replaced meanwhile.
	cmd := exec.Command("/proc/self/exe", pt.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	pt.cmd, pt.gone = cmd, gone
	go func() {
		_ = cmd.Wait()
		close(gone)
		p.died <- cmd
	}()
	return p.await(ctx, pt, pt.ready)
}

// kill ends pt, if it runs, and waits for it.
func (pt *part) kill() {
	if pt.cmd == nil {
		return
	}
	_ = pt.cmd.Process.Kill()
	<-pt.gone
	pt.cmd = nil
}

// await polls address with the administrator's token until it answers 200.
func (p *plane) await(ctx context.Context, pt *part, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // our own child, on loopback
		DisableKeepAlives: true,
	}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+p.token)
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-pt.gone:
			return fmt.Errorf("%s ended while starting, see %s", pt.name, filepath.Join(p.dir, pt.name+".log"))
		case <-ctx.Done():
			return fmt.Errorf("%s not ready: %w", pt.name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// say prints one JSON line on standard output.
func say(v any) { _ = json.NewEncoder(os.Stdout).Encode(v) }

// freePorts returns n distinct unused loopback ports. They lie below the range
// from which Linux takes the local ports of outgoing connections (32768 and
// up), so that a port stays free while its part is down.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := 15000 + rand.IntN(32768-15000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close() // at the end: the next one found must differ
		ports = append(ports, port)
	}
	return nil, errors.New("no free port found")
}

func writeKubeconfig(file, server string, ca []byte, user, token string) error {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["plane"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts["plane"] = &clientcmdapi.Context{Cluster: "plane", AuthInfo: user}
	cfg.CurrentContext = "plane"
	return clientcmd.WriteToFile(*cfg, file)
}
