// A run's steps as a timeline: laid over each other by path, parted into groups. Pure, and the same for page and app.
//
// A group is {name, section, steps}: a round, or a phase of a cycle. `section`: the task of a team that it belongs to, or
// "". A frame of changed steps gives a new timeline, in which groups without a change are the same objects: whoever
// draws compares by identity.

export const emptyTimeline = () => ({ groups: [], steps: new Map(), groupOf: new Map() });

const TASK = /^task-\d+\//;

/** Lay changed steps over a timeline. Steps keep the order in which they first came. */
export function addSteps(timeline, changed) {
  if (!changed.length) return timeline;
  const { steps, groupOf } = timeline; // shared with the next timeline: only the newest one is ever added to
  const groups = timeline.groups.slice();
  const fresh = new Set();
  for (const step of changed) {
    const name = step.group;
    if (!groupOf.has(name)) {
      groupOf.set(name, groups.length);
      groups.push({ name, section: TASK.test(step.path) ? step.path.split("/")[0] : "", steps: [] });
      fresh.add(name);
    }
    const at = groupOf.get(name);
    if (!fresh.has(name)) {
      groups[at] = { ...groups[at], steps: groups[at].steps.slice() };
      fresh.add(name);
    }
    const own = groups[at].steps;
    const known = steps.get(step.path);
    if (known) own[own.indexOf(known)] = step;
    else own.push(step);
    steps.set(step.path, step);
  }
  return { groups, steps, groupOf };
}

/** The groups by task, in the order in which the tasks first came; what is of no task stands where it came. */
export function sectionsOf(groups) {
  const sections = [];
  const tasks = new Map();
  for (const group of groups) {
    let section = group.section ? tasks.get(group.section) : sections.at(-1);
    if (!section || section.task !== group.section) {
      section = { task: group.section, groups: [] };
      sections.push(section);
      if (group.section) tasks.set(group.section, section);
    }
    section.groups.push(group);
  }
  return sections;
}

/** When a group's first step began, when its last one ended (so far), and what its steps used together. */
export function totalsOf(group) {
  const begin = group.steps[0].at;
  let end = begin;
  let tokens = 0;
  let usd = 0;
  for (const step of group.steps) {
    end = Math.max(end, step.at + (step.ms || 0));
    tokens += (step.input_tokens || 0) + (step.output_tokens || 0);
    usd += step.usd || 0;
  }
  return { begin, end, tokens, usd };
}

/** The newest step that is under way or waits; else the newest of all. */
export function newestStep(timeline) {
  const last = timeline.groups.slice(-8).flatMap((group) => group.steps);
  return last.findLast((step) => step.state === "begun" || step.state === "open") || last.at(-1);
}
