// Test of Nomad's Go client library with a running daemon. It makes the calls of the nomad command,
// the Terraform provider and the autoscaler. It prints each failed check. Exit status 1 if a check
// failed.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

const patience = 20 * time.Second

type world struct {
	client *api.Client
	alloc  *api.Allocation
	evalID string
	node   string
}

type check struct {
	name string
	run  func(w *world) error
}

func main() {
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		fmt.Println("client:", err)
		os.Exit(1)
	}
	w := &world{client: client}
	failed := 0
	for _, one := range checks {
		if err := one.run(w); err != nil {
			fmt.Printf("%s: %v\n", one.name, err)
			failed++
		}
	}
	fmt.Printf("%d checks, %d failed\n", len(checks), failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func ptr[T any](value T) *T { return &value }

// job returns a service job with one group, whose task sleeps.
func job(id string, count int) *api.Job {
	task := api.NewTask("main", "raw_exec").
		SetConfig("command", "/bin/sh").
		SetConfig("args", []string{"-c", "echo hello; exec sleep 300"}).
		Require(&api.Resources{CPU: ptr(20), MemoryMB: ptr(20)})
	task.KillTimeout = ptr(time.Second)
	group := api.NewTaskGroup("web", count).AddTask(task)
	made := api.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
	made.Datacenters = []string{"*"}
	return made
}

func batch(id string) *api.Job {
	made := job(id, 1)
	made.Type = ptr("batch")
	return made
}

// until repeats a blocking query until a condition holds, or until the timeout.
func until(look func(index uint64) (bool, uint64, error)) error {
	end := time.Now().Add(patience)
	var index uint64
	for time.Now().Before(end) {
		done, next, err := look(index)
		if done || err != nil {
			return err
		}
		index = next
	}
	return errors.New("timeout: the condition does not hold")
}

func waiting(index uint64) *api.QueryOptions {
	return &api.QueryOptions{WaitIndex: index, WaitTime: 5 * time.Second}
}

func expect(holds bool, format string, values ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, values...)
}

// running waits for a running allocation of a job, and returns it.
func running(w *world, id string) (*api.AllocationListStub, error) {
	var found *api.AllocationListStub
	err := until(func(index uint64) (bool, uint64, error) {
		all, meta, err := w.client.Jobs().Allocations(id, false, waiting(index))
		if err != nil {
			return false, 0, err
		}
		for _, one := range all {
			if one.ClientStatus == "running" && one.DesiredStatus == "run" {
				found = one
				return true, 0, nil
			}
		}
		return false, meta.LastIndex, nil
	})
	return found, err
}

var checks = []check{
	{"job run follows its evaluation", func(w *world) error {
		done, _, err := w.client.Jobs().Register(job("web", 1), nil)
		if err != nil {
			return err
		}
		w.evalID = done.EvalID
		return until(func(index uint64) (bool, uint64, error) {
			found, meta, err := w.client.Evaluations().Info(done.EvalID, waiting(index))
			if err != nil {
				return false, 0, err
			}
			return found.Status == "complete", meta.LastIndex, nil
		})
	}},
	{"evaluation allocations", func(w *world) error {
		found, _, err := w.client.Evaluations().Allocations(w.evalID, nil)
		if err != nil {
			return err
		}
		return expect(len(found) == 1, "%d allocations", len(found))
	}},
	{"allocation runs", func(w *world) error {
		stub, err := running(w, "web")
		if err != nil {
			return err
		}
		w.alloc, _, err = w.client.Allocations().Info(stub.ID, nil)
		if err != nil {
			return err
		}
		return expect(w.alloc.Job != nil && *w.alloc.Job.ID == "web", "the allocation has no job")
	}},
	{"job status by prefix", func(w *world) error {
		found, _, err := w.client.Jobs().PrefixList("we")
		if err != nil {
			return err
		}
		return expect(len(found) == 1 && found[0].ID == "web", "%v", found)
	}},
	{"job info, summary, versions, deployments", func(w *world) error {
		jobs := w.client.Jobs()
		if _, _, err := jobs.Info("web", nil); err != nil {
			return err
		}
		summary, _, err := jobs.Summary("web", nil)
		if err != nil {
			return err
		}
		if err := expect(summary.Summary["web"].Running == 1, "%+v", summary.Summary); err != nil {
			return err
		}
		if _, _, _, err := jobs.Versions("web", true, nil); err != nil {
			return err
		}
		if _, _, err := jobs.Deployments("web", false, nil); err != nil {
			return err
		}
		if _, _, err := jobs.LatestDeployment("web", nil); err != nil {
			return err
		}
		_, _, err = jobs.Evaluations("web", nil)
		return err
	}},
	{"job plan of an unchanged job is None", func(w *world) error {
		plan, _, err := w.client.Jobs().Plan(job("web", 1), true, nil)
		if err != nil {
			return err
		}
		return expect(plan.Diff.Type == "None", "type %s", plan.Diff.Type)
	}},
	{"job register enforces the index", func(w *world) error {
		found, _, err := w.client.Jobs().Info("web", nil)
		if err != nil {
			return err
		}
		if _, _, err = w.client.Jobs().EnforceRegister(job("web", 1), *found.JobModifyIndex, nil); err != nil {
			return err
		}
		_, _, err = w.client.Jobs().EnforceRegister(job("web", 2), 1, nil)
		return expect(err != nil && strings.Contains(err.Error(), api.RegisterEnforceIndexErrPrefix), "%v", err)
	}},
	{"job parse, validate and submission", func(w *world) error {
		source := "job \"parsed\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n    }\n  }\n}\n"
		parsed, err := w.client.Jobs().ParseHCL(source, true)
		if err != nil {
			return err
		}
		if _, _, err := w.client.Jobs().Validate(parsed, nil); err != nil {
			return err
		}
		_, err = w.client.Raw().Query("/v1/job/web/actions", &[]any{}, nil)
		return err
	}},
	{"job scale, and its status", func(w *world) error {
		if _, _, err := w.client.Jobs().Scale("web", "web", nil, "a note", false, nil, nil); err != nil {
			return err
		}
		status, _, err := w.client.Jobs().ScaleStatus("web", nil)
		if err != nil {
			return err
		}
		return expect(len(status.TaskGroups["web"].Events) == 1, "%+v", status)
	}},
	{"job dispatch and its children", func(w *world) error {
		launcher := batch("launcher")
		launcher.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "optional", MetaOptional: []string{"a"}}
		if _, _, err := w.client.Jobs().Register(launcher, nil); err != nil {
			return err
		}
		done, _, err := w.client.Jobs().Dispatch("launcher", map[string]string{"a": "b"}, []byte("x"), "", nil)
		if err != nil {
			return err
		}
		child, _, err := w.client.Jobs().Info(done.DispatchedJobID, nil)
		if err != nil {
			return err
		}
		return expect(*child.ParentID == "launcher" && string(child.Payload) == "x", "%v", child.Meta)
	}},
	{"job periodic force", func(w *world) error {
		clock := batch("clock")
		clock.Periodic = &api.PeriodicConfig{Enabled: ptr(true), Specs: []string{"0 0 1 1 *"}, SpecType: ptr("cron")}
		if _, _, err := w.client.Jobs().Register(clock, nil); err != nil {
			return err
		}
		_, _, err := w.client.Jobs().PeriodicForce("clock", nil)
		return err
	}},
	{"job versions: tag, stable, revert", func(w *world) error {
		jobs := w.client.Jobs()
		changed := job("web", 1)
		changed.Priority = ptr(60)
		if _, _, err := jobs.Register(changed, nil); err != nil {
			return err
		}
		if _, err := jobs.TagVersion("web", 0, "first", "", nil); err != nil {
			return err
		}
		if _, _, err := jobs.Stable("web", 0, true, nil); err != nil {
			return err
		}
		done, _, err := jobs.Revert("web", 0, nil, nil, "", "")
		if err != nil {
			return err
		}
		return expect(done.EvalID != "", "no evaluation")
	}},
	{"alloc stats, restart, signal", func(w *world) error {
		stub, err := running(w, "web")
		if err != nil {
			return err
		}
		w.alloc, _, err = w.client.Allocations().Info(stub.ID, nil)
		if err != nil {
			return err
		}
		usage, err := w.client.Allocations().Stats(w.alloc, nil)
		if err != nil {
			return err
		}
		if err := expect(usage.ResourceUsage != nil, "no usage"); err != nil {
			return err
		}
		if err := w.client.Allocations().Signal(w.alloc, nil, "main", "SIGCONT"); err != nil {
			return err
		}
		if err := w.client.Allocations().Restart(w.alloc, "main", nil); err != nil {
			return err
		}
		return until(func(index uint64) (bool, uint64, error) {
			found, meta, err := w.client.Allocations().Info(w.alloc.ID, waiting(index))
			if err != nil {
				return false, 0, err
			}
			state := found.TaskStates["main"]
			return state.Restarts == 1 && state.State == "running", meta.LastIndex, nil
		})
	}},
	{"alloc exec", func(w *world) error {
		if _, err := running(w, "web"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var out, errs bytes.Buffer
		code, err := w.client.Allocations().Exec(ctx, w.alloc, "main", false,
			[]string{"/bin/sh", "-c", "cat; exit 3"}, strings.NewReader("said"), &out, &errs, nil, nil)
		if err != nil {
			return err
		}
		return expect(code == 3 && out.String() == "said", "exit %d, %q %q", code, out.String(), errs.String())
	}},
	{"alloc logs -f", func(w *world) error {
		cancel := make(chan struct{})
		defer close(cancel)
		frames, errs := w.client.AllocFS().Logs(w.alloc, true, "main", "stdout", "start", 0, cancel, nil)
		select {
		case frame := <-frames:
			return expect(strings.HasPrefix(string(frame.Data), "hello"), "%q", frame.Data)
		case err := <-errs:
			return err
		case <-time.After(patience):
			return errors.New("no frame")
		}
	}},
	{"alloc fs", func(w *world) error {
		fs := w.client.AllocFS()
		found, _, err := fs.List(w.alloc, "/alloc/logs", nil)
		if err != nil {
			return err
		}
		if err := expect(len(found) > 0, "no files"); err != nil {
			return err
		}
		if _, _, err := fs.Stat(w.alloc, "/alloc/logs/main.stdout.0", nil); err != nil {
			return err
		}
		reader, err := fs.Cat(w.alloc, "/alloc/logs/main.stdout.0", nil)
		if err != nil {
			return err
		}
		defer reader.Close()
		text, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		return expect(strings.HasPrefix(string(text), "hello"), "%q", text)
	}},
	{"alloc list, services, checks, stop", func(w *world) error {
		if _, _, err := w.client.Allocations().List(nil); err != nil {
			return err
		}
		if _, _, err := w.client.Allocations().Services(w.alloc.ID, nil); err != nil {
			return err
		}
		if _, err := w.client.Allocations().Checks(w.alloc.ID, nil); err != nil {
			return err
		}
		done, err := w.client.Allocations().Stop(w.alloc, nil)
		if err != nil {
			return err
		}
		return expect(done.EvalID != "", "no evaluation")
	}},
	{"nodes", func(w *world) error {
		found, _, err := w.client.Nodes().List(nil)
		if err != nil {
			return err
		}
		w.node = found[0].ID
		if _, _, err := w.client.Nodes().Info(w.node, nil); err != nil {
			return err
		}
		if _, _, err := w.client.Nodes().Allocations(w.node, nil); err != nil {
			return err
		}
		if _, err := w.client.Nodes().Stats(w.node, nil); err != nil {
			return err
		}
		_, _, err = w.client.Nodes().ForceEvaluate(w.node, nil)
		return err
	}},
	{"node eligibility and drain", func(w *world) error {
		nodes := w.client.Nodes()
		if _, err := nodes.ToggleEligibility(w.node, false, nil); err != nil {
			return err
		}
		if _, err := nodes.UpdateDrain(w.node, &api.DrainSpec{Deadline: time.Second}, false, nil); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		found, meta, err := nodes.Info(w.node, nil)
		if err != nil {
			return err
		}
		_ = found
		for message := range nodes.MonitorDrain(ctx, w.node, meta.LastIndex, false) {
			if message.Level == api.MonitorMsgLevelError {
				return errors.New(message.Message)
			}
		}
		if ctx.Err() != nil {
			return errors.New("the drain did not end")
		}
		_, err = nodes.UpdateDrain(w.node, nil, true, nil)
		return err
	}},
	{"node pools", func(w *world) error {
		found, _, err := w.client.NodePools().List(nil)
		if err != nil {
			return err
		}
		if err := expect(len(found) == 2, "%d pools", len(found)); err != nil {
			return err
		}
		if _, _, err := w.client.NodePools().Info("default", nil); err != nil {
			return err
		}
		if _, _, err := w.client.NodePools().ListJobs("default", nil); err != nil {
			return err
		}
		_, _, err = w.client.NodePools().ListNodes("default", nil)
		return err
	}},
	{"evaluations", func(w *world) error {
		found, _, err := w.client.Evaluations().List(nil)
		if err != nil {
			return err
		}
		if err := expect(len(found) > 0, "none"); err != nil {
			return err
		}
		_, _, err = w.client.Evaluations().Count(nil)
		return err
	}},
	{"deployments: pause, fail", func(w *world) error {
		canary := job("canary", 1)
		canary.Update = &api.UpdateStrategy{Canary: ptr(1), MaxParallel: ptr(1), MinHealthyTime: ptr(time.Minute)}
		if _, _, err := w.client.Jobs().Register(canary, nil); err != nil {
			return err
		}
		var latest *api.Deployment
		if err := until(func(index uint64) (bool, uint64, error) {
			found, meta, err := w.client.Jobs().LatestDeployment("canary", waiting(index))
			if err != nil {
				return false, 0, err
			}
			latest = found
			return found != nil, meta.LastIndex, nil
		}); err != nil {
			return err
		}
		if _, _, err := w.client.Deployments().Info(latest.ID, nil); err != nil {
			return err
		}
		if _, _, err := w.client.Deployments().Allocations(latest.ID, nil); err != nil {
			return err
		}
		if _, _, err := w.client.Deployments().List(nil); err != nil {
			return err
		}
		if _, _, err := w.client.Deployments().Pause(latest.ID, true, nil); err != nil {
			return err
		}
		_, _, err := w.client.Deployments().Fail(latest.ID, nil)
		return err
	}},
	{"search", func(w *world) error {
		found, _, err := w.client.Search().PrefixSearch("we", "jobs", nil)
		if err != nil {
			return err
		}
		if err := expect(len(found.Matches["jobs"]) == 1, "%v", found.Matches); err != nil {
			return err
		}
		fuzzy, _, err := w.client.Search().FuzzySearch("anar", "all", nil)
		if err != nil {
			return err
		}
		return expect(len(fuzzy.Matches["jobs"]) == 1, "%v", fuzzy.Matches)
	}},
	{"event stream", func(w *world) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stream, err := w.client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicAll: {"*"}}, 1, nil)
		if err != nil {
			return err
		}
		seen := map[api.Topic]bool{}
		for batch := range stream {
			if batch.Err != nil {
				return batch.Err
			}
			for _, event := range batch.Events {
				seen[event.Topic] = true
				if err := decoded(event); err != nil {
					return err
				}
			}
			if seen[api.TopicJob] && seen[api.TopicAllocation] && seen[api.TopicEvaluation] && seen[api.TopicNode] && seen[api.TopicDeployment] {
				return nil
			}
		}
		return fmt.Errorf("only %v", seen)
	}},
	{"scaling policies, polled as the autoscaler does", func(w *world) error {
		scaled := job("scaled", 0)
		scaled.TaskGroups[0].Scaling = &api.ScalingPolicy{Min: ptr(int64(0)), Max: ptr(int64(3)), Enabled: ptr(true)}
		if _, _, err := w.client.Jobs().Register(scaled, nil); err != nil {
			return err
		}
		found, meta, err := w.client.Scaling().ListPolicies(nil)
		if err != nil {
			return err
		}
		if err := expect(len(found) == 1 && meta.LastIndex > 0, "%v at %d", found, meta.LastIndex); err != nil {
			return err
		}
		policy, _, err := w.client.Scaling().GetPolicy(found[0].ID, nil)
		if err != nil {
			return err
		}
		if err := expect(*policy.Max == 3, "%+v", policy); err != nil {
			return err
		}
		_, _, err = w.client.Jobs().Scale("scaled", "web", ptr(1), "because", false, map[string]any{"a": 1}, nil)
		return err
	}},
	{"namespaces", func(w *world) error {
		if _, err := w.client.Namespaces().Register(&api.Namespace{Name: "team"}, nil); err != nil {
			return err
		}
		if _, _, err := w.client.Namespaces().Info("team", nil); err != nil {
			return err
		}
		if _, _, err := w.client.Namespaces().List(nil); err != nil {
			return err
		}
		_, err := w.client.Namespaces().Delete("team", nil)
		return err
	}},
	{"variables", func(w *world) error {
		made := api.NewVariable("app/db")
		made.Items = api.VariableItems{"k": "v"}
		stored, _, err := w.client.Variables().Create(made, nil)
		if err != nil {
			return err
		}
		stored.Items["k"] = "w"
		if _, _, err := w.client.Variables().CheckedUpdate(stored, nil); err != nil {
			return err
		}
		var conflict api.ErrCASConflict
		if _, _, err = w.client.Variables().CheckedUpdate(stored, nil); !errors.As(err, &conflict) {
			return fmt.Errorf("no conflict: %v", err)
		}
		if _, _, err := w.client.Variables().List(nil); err != nil {
			return err
		}
		_, err = w.client.Variables().Delete("app/db", nil)
		return err
	}},
	{"acl", func(w *world) error {
		if _, _, err := w.client.ACLTokens().Self(nil); err != nil {
			return err
		}
		policy := &api.ACLPolicy{Name: "reader", Rules: `namespace "default" { policy = "read" }`}
		if _, err := w.client.ACLPolicies().Upsert(policy, nil); err != nil {
			return err
		}
		if _, _, err := w.client.ACLPolicies().Info("reader", nil); err != nil {
			return err
		}
		token, _, err := w.client.ACLTokens().Create(&api.ACLToken{Name: "x", Type: "client", Policies: []string{"reader"}}, nil)
		if err != nil {
			return err
		}
		if _, _, err := w.client.ACLTokens().List(nil); err != nil {
			return err
		}
		_, err = w.client.ACLTokens().Delete(token.AccessorID, nil)
		return err
	}},
	{"services", func(w *world) error {
		_, _, err := w.client.Services().List(nil)
		return err
	}},
	{"agent", func(w *world) error {
		agent := w.client.Agent()
		if _, err := agent.Self(); err != nil {
			return err
		}
		members, err := agent.Members()
		if err != nil {
			return err
		}
		if err := expect(len(members.Members) == 1, "%v", members); err != nil {
			return err
		}
		health, err := agent.Health()
		if err != nil {
			return err
		}
		if err := expect(health.Server.Ok && health.Client.Ok, "%+v", health); err != nil {
			return err
		}
		if _, err := agent.Servers(); err != nil {
			return err
		}
		_, err = agent.Region()
		return err
	}},
	{"agent monitor", func(w *world) error {
		stop := make(chan struct{})
		frames, errs := w.client.Agent().Monitor(stop, &api.QueryOptions{Params: map[string]string{"log_level": "debug"}})
		defer close(stop)
		select {
		case <-frames:
			return nil
		case err := <-errs:
			return err
		case <-time.After(time.Second): // a stream without events is also correct
			return nil
		}
	}},
	{"operator", func(w *world) error {
		operator := w.client.Operator()
		config, _, err := operator.SchedulerGetConfiguration(nil)
		if err != nil {
			return err
		}
		done, _, err := operator.SchedulerCASConfiguration(config.SchedulerConfig, nil)
		if err != nil {
			return err
		}
		if err := expect(done.Updated, "not updated"); err != nil {
			return err
		}
		if _, err := operator.RaftGetConfiguration(nil); err != nil {
			return err
		}
		if _, _, err := operator.AutopilotGetConfiguration(nil); err != nil {
			return err
		}
		health, _, err := operator.AutopilotServerHealth(nil)
		if err != nil {
			return err
		}
		if err := expect(health.Healthy, "not healthy"); err != nil {
			return err
		}
		_, err = operator.Metrics(nil)
		return err
	}},
	{"operator snapshot, with its checksum", func(w *world) error {
		reader, err := w.client.Operator().Snapshot(nil)
		if err != nil {
			return err
		}
		defer reader.Close()
		size, err := io.Copy(io.Discard, reader)
		if err != nil {
			return err
		}
		return expect(size > 0, "empty")
	}},
	{"status and regions", func(w *world) error {
		if _, err := w.client.Status().Leader(); err != nil {
			return err
		}
		if _, err := w.client.Status().Peers(); err != nil {
			return err
		}
		_, err := w.client.Regions().List()
		return err
	}},
	{"node pool with a lifetime of node identities", func(w *world) error {
		pools := w.client.NodePools()
		wanted := &api.NodePool{Name: "dev", NodeIdentityTTL: 36 * time.Hour}
		if _, err := pools.Register(wanted, nil); err != nil {
			return err
		}
		found, _, err := pools.Info("dev", nil)
		if err != nil {
			return err
		}
		if err := expect(found.NodeIdentityTTL == 36*time.Hour, "%v", found.NodeIdentityTTL); err != nil {
			return err
		}
		_, err = pools.Delete("dev", nil)
		return err
	}},
	{"token upload", func(w *world) error {
		token := &api.ACLToken{
			AccessorID: "b306571d-a3fa-42d2-ac5b-bbe49d8c3c7f",
			SecretID:   "c28ba0f6-ab8d-4e4d-b9f0-7f9f5d1c2e3a",
			Type:       "client",
			Policies:   []string{"some"},
		}
		made, _, err := w.client.ACLTokens().Upload(token, nil)
		if err != nil {
			return err
		}
		if err := expect(made.SecretID == token.SecretID, "%s", made.SecretID); err != nil {
			return err
		}
		_, err = w.client.ACLTokens().Delete(token.AccessorID, nil)
		return err
	}},
	{"host volume create, list, delete", func(w *world) error {
		volumes := w.client.HostVolumes()
		wanted := &api.HostVolume{Name: "data", PluginID: "mkdir"}
		made, _, err := volumes.Create(&api.HostVolumeCreateRequest{Volume: wanted}, nil)
		if err != nil {
			return err
		}
		if err := expect(made.Volume.State == api.HostVolumeStateReady, "%s", made.Volume.State); err != nil {
			return err
		}
		found, _, err := volumes.List(nil, nil)
		if err != nil {
			return err
		}
		if err := expect(len(found) == 1 && found[0].ID == made.Volume.ID, "%v", found); err != nil {
			return err
		}
		_, _, err = volumes.Delete(&api.HostVolumeDeleteRequest{ID: made.Volume.ID}, nil)
		return err
	}},
	{"a lock has one holder", func(w *world) error {
		lock := func() (*api.Locks, error) {
			return w.client.Locks(api.WriteOptions{}, api.Variable{Path: "locks/a", Lock: &api.VariableLock{TTL: "10s"}})
		}
		first, err := lock()
		if err != nil {
			return err
		}
		second, err := lock()
		if err != nil {
			return err
		}
		ctx := context.Background()
		if _, err := first.Acquire(ctx); err != nil {
			return err
		}
		if _, err := second.Acquire(ctx); !errors.Is(err, api.ErrLockConflict) {
			return fmt.Errorf("a second holder: %v", err)
		}
		if err := first.Renew(ctx); err != nil {
			return err
		}
		return first.Release(ctx)
	}},
	{"evaluation with related ones", func(w *world) error {
		large := job("roomless", 1)
		large.TaskGroups[0].Tasks[0].Resources.MemoryMB = ptr(1 << 30)
		done, _, err := w.client.Jobs().Register(large, nil)
		if err != nil {
			return err
		}
		if err := until(func(index uint64) (bool, uint64, error) {
			found, meta, err := w.client.Evaluations().Info(done.EvalID, waiting(index))
			if err != nil {
				return false, 0, err
			}
			return found.BlockedEval != "", meta.LastIndex, nil
		}); err != nil {
			return err
		}
		related := &api.QueryOptions{Params: map[string]string{"related": "true"}}
		found, _, err := w.client.Evaluations().Info(done.EvalID, related)
		if err != nil {
			return err
		}
		if _, _, err := w.client.Jobs().Deregister("roomless", true, nil); err != nil {
			return err
		}
		return expect(len(found.RelatedEvals) == 1, "%v", found.RelatedEvals)
	}},
	{"job stop and system gc", func(w *world) error {
		if _, _, err := w.client.Jobs().Deregister("web", false, nil); err != nil {
			return err
		}
		if err := w.client.System().ReconcileSummaries(); err != nil {
			return err
		}
		return w.client.System().GarbageCollect()
	}},
}

// decoded parses the payload of an event with the library's types.
func decoded(event api.Event) error {
	var err error
	switch event.Topic {
	case api.TopicJob:
		err = present(event.Job())
	case api.TopicAllocation:
		err = present(event.Allocation())
	case api.TopicEvaluation:
		err = present(event.Evaluation())
	case api.TopicDeployment:
		err = present(event.Deployment())
	case api.TopicNode:
		err = present(event.Node())
	}
	if err != nil {
		return fmt.Errorf("%s event of %s: %w", event.Topic, event.Key, err)
	}
	return nil
}

// present returns the error of a parsed payload, or an error if the payload is missing.
func present[T any](found *T, err error) error {
	if err != nil {
		return err
	}
	return expect(found != nil, "the event has no payload")
}
